"""The two ends of the scale: go on training with whatever there is, or with everything there ever was."""

from __future__ import annotations

from elign.lab.learners.learner import Learner


class FineTune(Learner):
    """Cross entropy on the new classes (and the exemplars, if there are any), and nothing against forgetting."""


class Joint(Learner):
    """Cross entropy on the images of all classes seen so far: what a learner could reach if nothing had to be given up.

    It goes on from the model of the task before, with all data.
    """

    sees_all_data = True
