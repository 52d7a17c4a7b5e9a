"""Incremental object detection: data, detectors, learners, evaluation, and ELI on the latents of regions.

It registers its benchmark with `elign.lab.runs.experiment.BENCHMARKS`. Torchvision's missing operators are supplied
first, so that every module below may import it.
"""

from elign.lab.detection.operators import prepare

prepare()
