"""Incremental object detection: data, detectors, learners, evaluation, and ELI on the latents of regions.

Built on `eli`, on torchvision (extra `detection`) and on the rest of `eli.lab`; nothing outside of this package imports
it but commands. Torchvision's missing operators are supplied first, so that every module below may import it.
"""

from eli.lab.detection import compat

compat.prepare()
