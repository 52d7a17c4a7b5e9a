"""Incremental object detection: data, detectors, learners, evaluation, and ELI on the latents of regions.

Built on `elign`, on torchvision (extra `detection`) and on the rest of `elign.lab`; nothing outside of it imports
it but commands. Torchvision's missing operators are supplied first, so that every module below may import it.
"""

from elign.lab.detection import compat

compat.prepare()
