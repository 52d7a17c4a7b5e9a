"""A map by a small network: the adapter of AdaGauss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner, FitReport
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import Progress, register
from elign.utils.tensors import check_number, check_seed, check_whole, compute_dtype

_MOST_PARAMETERS = 1 << 28


@register
class MLPMap(Aligner):
    """Two linear layers with GELU, trained on pairs (AdaGauss's adapter, G. Rypesc et al., NeurIPS 2024).

    Minimises the mean squared error with SGD and momentum 0.9. AdaGauss also trains the model for this map, which a
    correction after training cannot do; what is here is the map alone.

    Args:
        width: Hidden units for each dimension; the published value is 32.
        epochs: Passes over the pairs.
        learning_rate: Of SGD.
        batch_size: Pairs in a step.
        seed: Of the first weights and the order of pairs.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> report = elign.MLPMap(width=8, learning_rate=0.1).fit_latents(z, z + 1, direction="forward").report
        >>> report.drift_after < 0.2 * report.drift_before
        True
    """

    def __init__(
        self,
        *,
        width: int = 32,
        epochs: int = 100,
        learning_rate: float = 0.01,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.width = check_whole(width, "width", least=1, most=1024)
        self.epochs = check_whole(epochs, "epochs", least=1, most=10_000)
        self.learning_rate = check_number(learning_rate, "learning_rate", positive=True)
        self.batch_size = check_whole(batch_size, "batch_size", least=1)
        self.seed = check_seed(seed)

    def _build(self, dim: int) -> None:
        super()._build(dim)
        if 2 * self.width * dim * dim > _MOST_PARAMETERS:
            raise OptionError(f"width={self.width} is too large for latents of dimension {dim}: choose a smaller one")
        generator = torch.Generator().manual_seed(self.seed)
        wide = self.width * dim
        self.inner, self.outer = (_layer(a, b, generator) for a, b in ((dim, wide), (wide, dim)))

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        self.requires_grad_(True).to(z_cur.device, z_cur.dtype)
        generator = torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)
        losses = []
        with torch.enable_grad():
            for epoch in range(self.epochs):
                order = torch.randperm(len(z_cur), generator=generator, device="cpu")
                total = 0.0
                for rows in torch.split(order, self.batch_size):
                    optimizer.zero_grad()
                    loss = F.mse_loss(self._mapped(z_cur[rows]), z_prev[rows])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += loss.item() * len(rows) / len(order)
                losses.append(total)
                if progress is not None:
                    progress(epoch + 1, self.epochs, total)
        optimizer.zero_grad()
        self.requires_grad_(False)
        # Finite weights can still be so large that products with them are not.
        learned = (*self.parameters(), self._mapped(z_cur))
        if not all(bool(tensor.isfinite().all()) for tensor in learned):
            raise LatentError("the map became infinite while learning: scale the latents, or lower learning_rate")
        return FitReport(rows=len(z_cur), dim=z_cur.shape[1], loss=torch.tensor(losses, device="cpu"))

    def _mapped(self, rows: Tensor) -> Tensor:
        found: Tensor = self.outer(F.gelu(self.inner(rows)))
        return found

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        layers = (self.inner, self.outer)
        (a, b), (c, d) = ([p.to(rows.device, dtype) for p in layer.parameters()] for layer in layers)
        return F.linear(F.gelu(F.linear(rows.to(dtype), a, b)), c, d).to(rows.dtype)


def _layer(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Make a layer with the first weights of `nn.Linear`, drawn from this generator alone."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu").requires_grad_(False)
    for tensor in layer.parameters():
        tensor.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
    return layer
