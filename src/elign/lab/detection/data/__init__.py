"""Data sets for object detection: their shape, the digit scenes, VOC and COCO folders, and how training fetches them.

Built on `elign.lab.data`; anything in `elign.lab.detection` may import it. `open.py` opens a data set by its name.
"""
