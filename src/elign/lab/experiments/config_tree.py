"""What a tree of settings is: its files, its groups and what each may hold.

There is one tree for each kind of run. Its values come from the files of a package, which hydra puts together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from elign.lab.experiments.config_values import Checked


@dataclass(frozen=True)
class ConfigTree:
    """The settings of one kind of run.

    Args:
        package: Where its files are.
        sections: The groups that have settings of their own, by the name that the user types.
        plain: Settings that are in no group.
        paths: Settings that are paths, hence any text at all: hydra's grammar must not read them.
        implied: The choice that a setting implies where the user made none: `{"memory.budget": ("memory", "budget")}`.
        examples: Two settings, for messages.
        open_groups: Groups to which users may add choices.
    """

    package: str
    sections: Mapping[str, type[Checked]]
    plain: tuple[str, ...]
    paths: tuple[str, ...]
    examples: tuple[str, str]
    implied: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    open_groups: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """What the user chooses by name."""
        return (*self.sections, "preset")

    def choices(self, group: str) -> tuple[str, ...]:
        """The choices of a group: the files of the package, and what was registered (`register_learner`)."""
        # Imported here: hydra takes a while, and not every command composes settings.
        from hydra.core.config_store import ConfigStore

        store = ConfigStore.instance()
        own = store.list(group) if group in self.open_groups and group in store.repo else ()
        return tuple(sorted({*_choices(self.package, group), *(name.removesuffix(".yaml") for name in own)}))


@cache
def _choices(package: str, group: str) -> tuple[str, ...]:
    folder = resources.files(package).joinpath(group)
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))
