"""Class-incremental learners. One file a learner: it registers a class with `LEARNERS`."""

from __future__ import annotations

from elign.lab.learners.base import LEARNERS, Learner, LearnerOptions, Loss, make_learner

__all__ = ["LEARNERS", "Learner", "LearnerOptions", "Loss", "make_learner"]
