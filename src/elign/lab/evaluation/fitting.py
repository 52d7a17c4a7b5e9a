"""Fits every aligner of one task: ELI and its controls, backward (current to previous) and forward.

Sees pairs of latents of the current task's training images and, for the length of one control, exemplars; never a test
image or a label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elign.aligners.base import Aligner, FitReport
from elign.aligners.energy import EnergyAligner
from elign.aligners.kernel import LocalShift
from elign.aligners.linear import MeanShift, RandomShift, Ridge
from elign.lab.evaluation.settings import AlignerSettings
from elign.lab.seeds import derive_seed
from elign.utils.fitted import Progress, register


@register
class UntrainedEnergyAligner(EnergyAligner):
    """Descends the energy model that `EnergyAligner` of the same seed starts from: does training matter at all?

    Example:
        >>> import torch
        >>> z = torch.randn(50, 4)
        >>> moved = UntrainedEnergyAligner(seed=1).fit_latents(z, z + 1).align(z + 1)
        >>> barely_trained = EnergyAligner(seed=1, iterations=1, learning_rate=1e-12).fit_latents(z, z + 1)
        >>> bool(torch.allclose(moved, barely_trained.align(z + 1), atol=1e-5))
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        assert self.energy is not None  # noqa: S101  (made by _build, from the seed)
        self.energy.to(z_cur.dtype)
        return FitReport(rows=len(z_cur), dim=z_cur.shape[1])


def fit_backward(
    previous: Tensor, current: Tensor, *, old: Tensor | None, settings: AlignerSettings, seed: int
) -> dict[str, Aligner]:
    """Aligners from the current space to the previous one.

    Args:
        previous: Values of training images of the task's own classes under the previous model, (P, D).
        current: The same under the current model, (P, D).
        old: Values of exemplars of the old classes under the current model, if there are any. `random-shift` is as long
            as ELI's mean move of these, else of `current`: the lengths that matter are those of old samples.
        settings: Options.
        seed: Of everything random.

    Returns:
        `eli`, `mean-shift`, `ridge`, `random-shift` and `untrained`, all fitted.
    """
    energy_seed = derive_seed(seed, "energy model")
    energy = EnergyAligner(**settings.energy_options(), seed=energy_seed).fit_latents(previous, current)
    measured = current if old is None else old
    generator = torch.Generator().manual_seed(derive_seed(seed, "random shift: length"))
    length = float((energy.align(measured, generator=generator) - measured).norm(dim=1).mean())
    controls: dict[str, Aligner] = {
        "mean-shift": MeanShift(),
        "ridge": Ridge(penalty=settings.ridge_penalty),
        "random-shift": RandomShift(norm=length, seed=derive_seed(seed, "random shift")),
        "untrained": UntrainedEnergyAligner(**settings.energy_options(), seed=energy_seed),
    }
    return {"eli": energy, **{name: control.fit_latents(previous, current) for name, control in controls.items()}}


def fit_forward(previous: Tensor, current: Tensor, *, settings: AlignerSettings, seed: int) -> dict[str, Aligner]:
    """Aligners from the previous space to the current one.

    Returns:
        `mean-shift`, `ridge`, `eli` and `local-shift`, all fitted.
    """
    aligners: dict[str, Aligner] = {
        "mean-shift": MeanShift(),
        "ridge": Ridge(penalty=settings.ridge_penalty),
        "eli": EnergyAligner(**settings.energy_options(), seed=derive_seed(seed, "forward energy model")),
        "local-shift": LocalShift(seed=derive_seed(seed, "anchors")),
    }
    return {name: aligner.fit_latents(previous, current, direction="forward") for name, aligner in aligners.items()}
