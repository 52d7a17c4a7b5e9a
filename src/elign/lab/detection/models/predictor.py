"""The detector's head: latents of regions to class scores and box corrections, with room for classes to come."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elign.utils.errors import OptionError

# Of Fast R-CNN (R. Girshick, ICCV 2015): scores start nearly equal, boxes nearly unchanged.
_SCORE_STD = 0.01
_BOX_STD = 0.001


class Predictor(nn.Module):
    """Two linear layers on a region's latent, as torchvision's `FastRCNNPredictor`, that grow with the classes.

    Column 0 of the scores is background, column 1 + c is class c; with `unknown` one more stands last. Parameters are
    new ones after `grow`, so build the optimiser after it, never before; the module itself stays, and with it whatever
    is attached to it.

    Args:
        latent_dim: Dimension of the latents.
        classes: Number of classes to begin with, possibly none.
        class_agnostic: One set of box corrections for a region, instead of one for each column but the unknown's.
        unknown: Whether there is an output for objects of no known class.

    Example:
        >>> predictor = Predictor(8, 2)
        >>> predictor.grow(3)
        >>> logits, deltas = predictor(torch.zeros(5, 8))
        >>> logits.shape, deltas.shape
        (torch.Size([5, 6]), torch.Size([5, 4]))
    """

    def __init__(
        self, latent_dim: int, classes: int = 0, *, class_agnostic: bool = True, unknown: bool = False
    ) -> None:
        super().__init__()
        if latent_dim < 1 or classes < 0:
            raise OptionError(f"a head needs latent_dim >= 1 and classes >= 0, got {latent_dim} and {classes}")
        self.classes = classes
        self.class_agnostic = class_agnostic
        self.unknown = unknown
        self.score = _linear(latent_dim, 1 + classes + unknown, _SCORE_STD)
        self.box = _linear(latent_dim, 4 if class_agnostic else 4 * (1 + classes), _BOX_STD)

    def grow(self, new: int) -> None:
        """Add `new` classes behind the known ones; the rows of all others keep their values bit for bit."""
        if new < 1:
            raise OptionError(f"a head can only grow by 1 class or more, not by {new}")
        _insert_rows(self.score, new, _SCORE_STD, before_last=int(self.unknown))
        if not self.class_agnostic:
            _insert_rows(self.box, 4 * new, _BOX_STD)
        self.classes += new

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Latents (R, D) to logits (R, 1 + classes [+ 1]) and corrections (R, 4) or (R, 4 (1 + classes)).

        The corrections are in torchvision's layout, so that its own heads can use this one.
        """
        return self.score(latents), self.box(latents)


def _linear(dim: int, rows: int, std: float) -> nn.Linear:
    layer = nn.Linear(dim, rows)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def _insert_rows(layer: nn.Linear, rows: int, std: float, *, before_last: int = 0) -> None:
    weight, bias = layer.weight.detach(), layer.bias.detach()
    place = len(weight) - before_last
    fresh = weight.new_empty(rows, weight.shape[1]).normal_(std=std)
    for name, old, added in (("weight", weight, fresh), ("bias", bias, bias.new_zeros(rows))):
        joined = torch.cat([old[:place], added, old[place:]])
        setattr(layer, name, nn.Parameter(joined, requires_grad=getattr(layer, name).requires_grad))
    layer.out_features += rows
