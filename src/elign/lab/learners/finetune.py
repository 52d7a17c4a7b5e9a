"""The two ends of the scale: train on the data at hand, or on all data of all tasks so far."""

from __future__ import annotations

from elign.lab.learners.base import LEARNERS, Learner


@LEARNERS.register("finetune")
class FineTune(Learner):
    """Cross entropy on the new classes and the exemplars, and nothing against forgetting."""


@LEARNERS.register("joint")
class Joint(Learner):
    """Cross entropy on the images of all classes seen so far, from the model of the task before: the upper bound."""

    sees_all_data = True
