"""Class-incremental learners of detectors. One file a learner: it registers a class with `DETECTION_LEARNERS`."""

from elign.lab.detection.learners.base import (
    DETECTION_LEARNERS,
    DetectionLearner,
    Fetch,
    Stage,
    Targets,
    make_detection_learner,
)

__all__ = ["DETECTION_LEARNERS", "DetectionLearner", "Fetch", "Stage", "Targets", "make_detection_learner"]
