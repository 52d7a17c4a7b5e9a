"""The learning rate over a task, as a function of how far it is: nothing to store, nothing to resume."""

from __future__ import annotations

import math
from collections.abc import Sequence

from elign.lab.config.schema import TrainConfig

_WARM_UP, _START = 0.3, 0.04  # of the one-cycle schedule: share of the steps, share of the rate


def rate_share(config: TrainConfig, epoch: int, within: float, *, epochs: int) -> float:
    """The learning rate as a share of its peak, by the schedule of the configuration.

    Args:
        config: Of the training.
        epoch: From 0.
        within: How much of it is done, 0 to 1.
        epochs: How many there are.
    """
    if config.schedule == "one-cycle":
        return one_cycle((epoch + within) / epochs)
    return steps(epoch, epochs, milestones=config.milestones, gamma=config.gamma)


def one_cycle(done: float) -> float:
    """Share of the peak rate after the share `done` of all steps: half a cosine up from 1/25, then one down to 0."""
    if done < _WARM_UP:
        return _START + (1 - _START) * (1 - math.cos(math.pi * done / _WARM_UP)) / 2
    return (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2


def steps(epoch: int, epochs: int, *, milestones: Sequence[float], gamma: float) -> float:
    """Share of the first rate in epoch number `epoch` (from 0): times `gamma` from each milestone on.

    Milestones are shares of `epochs`. The published code moves its scheduler before each epoch, which makes every drop
    one epoch early: with 160 epochs and a milestone of 1/2, epoch 79 (from 0) is the first with the lower rate.
    """
    return gamma ** sum(epoch + 1 >= round(milestone * epochs) for milestone in milestones)
