"""The two ends of the scale: go on training with the new classes alone, or with everything there ever was."""

from __future__ import annotations

from elign.lab.detection.learners.learner import DetectionLearner


class FineTune(DetectionLearner):
    """The losses of Faster R-CNN on the new classes, and nothing against forgetting ("standard training")."""

    name = "finetune"


class Joint(DetectionLearner):
    """The losses of Faster R-CNN on all images and objects of all classes seen so far: what could be reached at best.

    It goes on from the detector of the task before, with all data.
    """

    name = "joint"
    sees_all_data = True
