"""The label-free default: several readouts that vote, chosen on training data. Imported by `evaluate.py`.

It sees a `Material`, which holds no test label, and the forward prototypes; its choice is made before it is shown a
test row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eli.blend import Blend
from eli.lab.evaluation.material import Material
from eli.lab.evaluation.readings import Reading
from eli.lab.seeds import derive_seed
from eli.prototypes import NearestMean, Prototypes
from eli.readout import Aligned, HeadScores, Readout


def choose_blend(material: Material, forward: Tensor) -> Blend:
    """The blend of a task.

    Where every class has exemplars: the head, the nearest mean of exemplars before and after alignment, and forward
    prototypes, chosen on the exemplars. Else the head and forward prototypes, chosen on data of the new classes and
    stand-ins for the old ones.

    Args:
        material: Of the task; its rows are latents.
        forward: Prototypes (seen, D) that were moved forward into the current space.
    """
    prototypes = Prototypes().add(forward, torch.arange(material.seen))
    parts: list[Readout] = [HeadScores(), prototypes]
    if material.has_all_exemplars:
        latents, labels = material.memory, material.memory_labels
        aligner = material.aligners["eli"]
        # The same noise, where there is any, as `Aligned` has when it leaves one out.
        aligned = aligner.align(latents, generator=torch.Generator().manual_seed(0))
        parts += [
            NearestMean().add(latents, labels),
            Aligned(aligner, NearestMean().add(aligned, labels)),
        ]
    else:
        latents, labels = _without_exemplars(material, prototypes)
    return Blend(parts, known=material.known).choose(latents, labels, logits=material.space.logits(latents))


def blend_readings(material: Material, blend: Blend | None) -> Iterator[Reading]:
    """The blend's scores of the test rows."""
    if blend is not None:
        yield Reading("blend", "blend", True, blend(material.test, logits=material.space.logits(material.test)))


def _without_exemplars(material: Material, prototypes: Prototypes) -> tuple[Tensor, Tensor]:
    seed = derive_seed(material.seed, "stand-ins")
    made, classes = prototypes.stand_ins(material.new, material.new_labels, seed=seed)
    return torch.cat([made, material.new]), torch.cat([classes, material.new_labels])
