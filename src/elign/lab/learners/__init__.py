"""Class-incremental learners, by name. They know nothing of aligners, memories, optimisers or files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from elign.lab.learners.aanet import AANet
from elign.lab.learners.finetune import FineTune, Joint
from elign.lab.learners.icarl import ICarl
from elign.lab.learners.learner import Learner, Loss
from elign.lab.learners.lucir import Lucir
from elign.lab.models.blocks import Backbone
from elign.utils.errors import OptionError

__all__ = ["LEARNERS", "REGISTERED", "Learner", "Loss", "make_learner", "register_learner"]

LEARNERS: dict[str, type[Learner]] = {
    "finetune": FineTune,
    "joint": Joint,
    "icarl": ICarl,
    "lucir": Lucir,
    "aanet": AANet,
}
REGISTERED: dict[str, dict[str, Any]] = {}
"""What `register_learner` was given for each name: processes elsewhere have to be told."""


def make_learner(
    name: str,
    make_backbone: Callable[[], Backbone],
    *,
    head: str = "cosine",
    freeze_old: bool = True,
    imprint_new: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Learner:
    """A learner that has learned nothing yet.

    Args:
        name: One of `LEARNERS`.
        make_backbone: Makes a freshly drawn backbone.
        head: "cosine" or "linear".
        freeze_old: Whether the prototypes of old classes stay as they are.
        imprint_new: Whether prototypes of new classes start at the mean directions of their latents.
        options: The learner's own numbers; those not given have their published values.

    Raises:
        OptionError: No learner has this name, or it does not take these options.

    Example:
        >>> from elign.lab.models import make_backbone
        >>> learner = make_learner("icarl", lambda: make_backbone("conv", image_shape=(1, 8, 8)))
        >>> learner.grow(5)
        >>> learner.grow(1)
        >>> learner.known, learner.classes
        (5, 6)
    """
    if name not in LEARNERS:
        near = difflib.get_close_matches(name.lower(), LEARNERS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"There is no learner {name!r}.{hint} Choose from: {', '.join(LEARNERS)}.")
    return LEARNERS[name](make_backbone, head=head, freeze_old=freeze_old, imprint_new=imprint_new, options=options)


def register_learner(
    name: str, learner: type[Learner], *, head: str = "cosine", freeze_old: bool = False, imprint: bool = True
) -> None:
    """Make a learner of one's own a choice of the bench: `learner=NAME`, its `defaults` being `learner.OPTION=VALUE`.

    Args:
        name: What is typed.
        learner: The class.
        head: "cosine" or "linear".
        freeze_old: Whether the prototypes of old classes stay as they are.
        imprint: Whether prototypes of new classes start at the mean directions of their latents.

    Raises:
        OptionError: There is such a learner already, or it cannot have this name or such options.
    """
    # Imported here: hydra takes a while, and learners need it for nothing else.
    from hydra.core.config_store import ConfigStore

    if name in LEARNERS:
        raise OptionError(f"There is a learner {name!r} already: choose another name.")
    if not re.fullmatch(r"[\w-]+", name):
        raise OptionError(f"A learner's name has letters, digits, - and _ only, not {name!r}.")
    settings = {"name": name, "head": head, "freeze_old": freeze_old, "imprint": imprint}
    taken = sorted(settings.keys() & learner.defaults.keys())
    if taken:
        raise OptionError(f"The bench itself has a setting {taken[0]!r}: give the learner's option another name.")
    ConfigStore.instance().store(group="learner", name=name, node=settings | dict(learner.defaults))
    LEARNERS[name] = learner
    REGISTERED[name] = {"learner": learner, "head": head, "freeze_old": freeze_old, "imprint": imprint}
