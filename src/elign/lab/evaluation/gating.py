"""What each label-free gate says about test rows. It never sees a test label.

Gates do not depend on the classifier: `by-prediction` asks the model's own head also where class means predict, since
cosines to class means are no probabilities and one gate per task has one accuracy.
"""

from __future__ import annotations

from torch import Tensor

from elign.aligners.base import Aligner
from elign.gates.by_energy import ByEnergy
from elign.gates.by_prediction import ByPrediction
from elign.gates.by_probe import ByProbe
from elign.gates.fixed_strength import FixedStrength
from elign.lab.evaluation.material import Material
from elign.lab.evaluation.spaces import Space


def gate_weights(
    rows: Tensor, *, space: Space, aligner: Aligner, new: Tensor, old: Tensor | None, known: int, quantile: float
) -> dict[str, Tensor]:
    """How far each gate moves each row: 0 leaves it, 1 aligns it.

    Args:
        rows: Test rows (N, ...).
        space: What rows are.
        aligner: The fitted energy aligner, for `by-energy`.
        new: Rows of training images of the new classes, on which `by-energy` and `by-probe` are set.
        old: Rows of exemplars of the old classes, or None if there are none; `by-probe` needs them.
        known: Number of old classes.
        quantile: Of `by-energy`, when there are no exemplars.

    Returns:
        Weights (N,) by the gate's name.
    """
    weights = {
        "by-prediction": ByPrediction(old_classes=known)(rows, head=space.logits),
        "by-prediction-soft": ByPrediction(old_classes=known, soft=True)(rows, head=space.logits),
    }
    energy = ByEnergy(quantile=quantile)
    energy.fit(aligner, space.values(new), None if old is None else space.values(old))
    weights["by-energy"] = energy(space.values(rows), aligner=aligner)
    if old is not None:
        # The whole row: in the logit space the new classes' logits tell old from new as well.
        weights["by-probe"] = ByProbe().fit(old, new)(rows)
    return {name: weight.float() for name, weight in weights.items()}


def dose_weights(material: Material) -> Tensor:
    """The one dose that every test row of latents gets: chosen on exemplars, without any on data of the new classes."""
    latents, labels = material.new, material.new_labels
    if material.has_exemplars_of_both:
        latents, labels = material.memory, material.memory_labels
    dose = FixedStrength().fit(
        material.aligners["eli"], material.space.logits, latents, labels, old_classes=material.known
    )
    weights: Tensor = dose(material.test)
    return weights
