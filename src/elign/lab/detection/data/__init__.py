"""Data sets for object detection: each file registers its own with `DETECTION_DATASETS`."""
