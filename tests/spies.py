"""What tests of `fit` share: a model and an aligner that note what is done with them, and inputs."""

from __future__ import annotations

import torch
from torch import nn

from elign import Identity


class Spy(nn.Module):
    """A linear map that counts its calls and notes its mode."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.tensor(factor))
        self.calls, self.rows, self.modes = 0, 0, set()

    def forward(self, x):
        self.calls += 1
        self.rows += len(x)
        self.modes |= {self.training, self.drop.training, torch.is_grad_enabled()}
        return self.drop(x) * self.weight


class Recorder(Identity):
    """Keeps the latents that it was given."""

    def _learn(self, z_prev, z_cur, progress):
        self.seen = z_prev, z_cur
        return super()._learn(z_prev, z_cur, progress)


X = torch.arange(40.0).reshape(20, 2)


def batches_of(size=8):
    return list(X.split(size))
