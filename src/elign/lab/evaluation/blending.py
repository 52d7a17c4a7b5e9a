"""The label-free default: several readouts that vote, chosen on training data.

It sees a `Material`, which holds no test label, prototypes of the task before and a map from there; its choice is made
before it is shown a test row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from elign.aligner import Aligner
from elign.blend import Blend
from elign.fit_blend import Labelled, blend_exemplars, blend_prototypes
from elign.lab.evaluation.material import Material
from elign.lab.evaluation.readings import Reading
from elign.lab.seeds import derive_seed
from elign.prototypes import Prototypes


def blend_of(material: Material, before: Tensor, forward: Aligner, ends: Sequence[int]) -> Blend:
    """The blend of a task, as `elign.fit_blend` chooses it.

    Args:
        material: Of the task; its rows are latents.
        before: Prototypes (known, D) in the space of the task before.
        forward: The ridge map from there to the current space.
        ends: How many classes there were after each task before.
    """
    head = material.space.logits
    if material.has_all_exemplars:
        exemplars = Labelled(material.memory, material.memory_labels)
        return blend_exemplars(material.aligners["eli"], head, exemplars, known=ends)
    return blend_prototypes(
        material.aligners["ridge"],
        forward,
        head,
        Prototypes().add(before, torch.arange(material.known)),
        Labelled(material.new, material.new_labels),
        known=ends,
        seed=derive_seed(material.seed, "stand-ins"),
    )


def blend_readings(material: Material, blend: Blend | None) -> Iterator[Reading]:
    """The blend's scores of the test rows."""
    if blend is not None:
        yield Reading("blend", "blend", True, blend(material.test, logits=material.space.logits(material.test)))
