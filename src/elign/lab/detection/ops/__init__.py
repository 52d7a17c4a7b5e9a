"""Operators of detection in plain torch, the same as torchvision's compiled ones; `compat` puts them in their place.

Detectors call torchvision's functions, which are the compiled operators wherever these load; nothing here imports
torchvision.
"""

from elign.lab.detection.ops.nms import nms
from elign.lab.detection.ops.roi_align import roi_align

__all__ = ["nms", "roi_align"]
