"""The energy model E(z): a small MLP whose value is low where the previous model put its latents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.utils.errors import LatentError, OptionError
from elign.utils.tensors import check_number, check_whole, whole_number

_MOST_LAYERS, _WIDEST = 64, 1 << 20  # options also come from files: bounds of memory and time


def check_widths(hidden: Sequence[int]) -> tuple[int, ...]:
    """Return the widths of hidden layers as plain numbers; raise if they are not positive whole numbers."""
    try:
        widths = tuple(map(whole_number, hidden))
    except TypeError:
        widths = (0,)
    if len(widths) > _MOST_LAYERS or not all(1 <= width <= _WIDEST for width in widths):
        raise OptionError(
            f"hidden must be at most {_MOST_LAYERS} widths of layers from 1 to {_WIDEST}, such as (64, 64) or (), got "
            f"{str(hidden)[:80]}"
        )
    return widths


class EnergyModel(nn.Module):
    """Multi-layer perceptron from a latent to one number, its energy.

    `Linear(D, H1) -> LeakyReLU -> ... -> LeakyReLU -> Linear(Hk, 1)`, without normalisation, dropout or output
    activation. `hidden=()` gives the linear energy `w.z + b`, whose descent is one constant shift for all latents.

    The sign follows the physics: *low* energy means "looks like a latent of the previous model". (The authors' network
    returns the negative of this.)

    Args:
        dim: Latent dimension D.
        hidden: Width of each hidden layer; the paper's "i-64-64-o" is `(64, 64)`.
        slope: Slope of LeakyReLU for negative values.
        generator: Source of the initial weights, U(-1/sqrt(fan_in), 1/sqrt(fan_in)); the global one when not given.

    Example:
        >>> import torch, elign
        >>> energy = elign.EnergyModel(64)
        >>> energy(torch.randn(5, 64)).shape
        torch.Size([5])
        >>> sum(p.numel() for p in energy.parameters())   # the paper's 8385
        8385
    """

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (64, 64),
        *,
        slope: float = 0.2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = [check_whole(dim, "dim", least=1, most=_WIDEST), *check_widths(hidden), 1]
        self.dim, self.hidden = widths[0], tuple(widths[1:-1])
        self.slope = float(check_number(slope, "slope"))
        # skip_init: nn.Linear's own initialisation would draw from the global random state of the caller.
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, a, b)  # type: ignore[no-untyped-call]
            for a, b in pairwise(widths)
        )
        with torch.no_grad():
            for weight, bias in self.linear_maps():
                bound = 1 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound, generator=generator)
                bias.uniform_(-bound, bound, generator=generator)

    def linear_maps(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each linear layer, from input to output."""
        return [(layer.weight, layer.bias) for layer in self.layers]  # type: ignore[misc]

    def forward(self, z: Tensor) -> Tensor:
        """Energy of each latent: `(..., D) -> (...)`."""
        if z.shape[-1:] != (self.dim,):
            raise LatentError(f"this energy model takes latents of dimension {self.dim}, got shape {tuple(z.shape)}")
        maps = self.linear_maps()
        for weight, bias in maps[:-1]:
            z = F.leaky_relu(F.linear(z, weight, bias), self.slope)
        return F.linear(z, *maps[-1]).squeeze(-1)

    def extra_repr(self) -> str:
        """Shown by `repr`."""
        return f"dim={self.dim}, hidden={self.hidden}, slope={self.slope}"
