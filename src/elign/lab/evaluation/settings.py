"""Options of the aligners that an evaluation fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from elign.utils.errors import OptionError

SpaceName = Literal["latent", "logits"]


@dataclass(frozen=True)
class AlignerSettings:
    """How the aligners of one run are fitted; the defaults are the paper's for CIFAR-100.

    Ranges are checked by the aligners themselves, when they are made.

    Args:
        iterations: Training iterations of the energy model; this and the next eight as in `elign.EnergyAligner`.
        hidden: Widths of its hidden layers.
        learning_rate: Of RMSprop.
        batch_size: Rows per iteration.
        steps: Langevin steps.
        step_size: Langevin step size.
        noise: Langevin noise.
        half_step: Half the gradient's step.
        ema_decay: Decay of the moving average of the weights.
        space: What is aligned: the latents, or the logits of the old classes.
        ridge_penalty: `elign.Ridge`'s penalty.
        energy_quantile: `elign.ByEnergy`'s quantile, used where there are no exemplars to calibrate it on.
    """

    iterations: int = 1500
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-4
    batch_size: int = 128
    steps: int = 30
    step_size: float = 0.1
    noise: float = 0.0
    half_step: bool = False
    ema_decay: float = 0.89
    space: SpaceName = "latent"
    ridge_penalty: float = 0.1
    energy_quantile: float = 0.05

    def __post_init__(self) -> None:
        if self.space not in get_args(SpaceName):
            raise OptionError(f"space must be one of {', '.join(get_args(SpaceName))}, got {self.space!r}")

    def energy_options(self) -> dict[str, Any]:
        """The options of an `elign.EnergyAligner`, but for its seed."""
        return {
            "iterations": self.iterations,
            "hidden": tuple(self.hidden),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "step_size": self.step_size,
            "noise": self.noise,
            "half_step": self.half_step,
            "ema_decay": self.ema_decay,
        }
