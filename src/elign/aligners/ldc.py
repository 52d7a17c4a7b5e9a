"""Learnable drift compensation: one bias-free linear map."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.aligners.affine import AffineAligner, solve_ridge
from elign.utils.errors import OptionError
from elign.utils.fitted import register
from elign.utils.tensors import check_number, check_seed, check_whole

Solver = Literal["closed", "adam"]


@register
class LDC(AffineAligner):
    """The linear map `z A` of learnable drift compensation (A. Gomez-Villa et al., ECCV 2024).

    Minimises `sum ||z_prev A - z_cur||^2`, without an intercept. The released code trains it with Adam on augmented
    images (`solver="adam"`); the paper's minimum has the closed form that is the default here. The paper transports
    means only and classifies by the nearest mean of normalised latents.

    Args:
        solver: `closed`, or `adam` as published.
        epochs: Passes of Adam over the pairs; the closed form uses none of these four options.
        learning_rate: Of Adam.
        batch_size: Pairs in a step.
        seed: Of the first weights and the order of pairs.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> moved = elign.LDC().fit_latents(z, 2 * z, direction="forward").align(torch.ones(1, 3))
        >>> moved.round(decimals=3).tolist()
        [[2.0, 2.0, 2.0]]
    """

    def __init__(
        self,
        *,
        solver: Solver = "closed",
        epochs: int = 20,
        learning_rate: float = 1e-3,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if solver not in get_args(Solver):
            raise OptionError(f"solver must be one of {', '.join(get_args(Solver))}, got {solver!r}")
        self.solver: Solver = solver
        self.epochs = check_whole(epochs, "epochs", least=1, most=10_000)
        self.learning_rate = check_number(learning_rate, "learning_rate", positive=True)
        self.batch_size = check_whole(batch_size, "batch_size", least=1)
        self.seed = check_seed(seed)

    def _solve(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.solver == "closed":
            return solve_ridge(source, target, 1e-9), None
        generator, dim = torch.Generator().manual_seed(self.seed), source.shape[1]
        # The first weights of torch.nn.Linear.
        start = (2 * torch.rand(dim, dim, generator=generator, device="cpu") - 1) / math.sqrt(dim)
        with torch.enable_grad():
            matrix = start.requires_grad_()
            optimizer = torch.optim.Adam([matrix], lr=self.learning_rate)
            for _ in range(self.epochs):
                order = torch.randperm(len(source), generator=generator, device="cpu")
                for rows in torch.split(order, self.batch_size):
                    optimizer.zero_grad()
                    F.mse_loss(source[rows].float() @ matrix, target[rows].float()).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return matrix.detach().double(), None
