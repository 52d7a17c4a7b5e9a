"""Registries: objects by name, from all modules of a package, imported when the first name is asked for."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from elign.utils.errors import OptionError

T = TypeVar("T")


def did_you_mean(text: str, candidates: Iterable[str]) -> str:
    """Return the nearest candidate as a question that follows a sentence, or nothing if none is near."""
    near = difflib.get_close_matches(text.strip().lower(), list(candidates), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


class UnknownNameError(OptionError, KeyError):
    """Nothing is registered under a name; a `KeyError`, too, so that `Mapping.get` works."""

    __str__ = Exception.__str__


class Registry(Mapping[str, T], Generic[T]):
    """Objects by name. Each module of a package, or of a package below it, adds its own with `add`.

    Args:
        package: The package whose modules register objects, such as `elign.lab.learners`.
        what: What one of the objects is called in messages, such as `learner`.
        search: Whether to import the modules of the package when a name is not found.
        also: Modules elsewhere that register objects.

    Example:
        >>> colours = Registry("elign.lab", "colour", search=False)
        >>> _ = colours.add("red", 0xFF0000)
        >>> list(colours), colours["red"]
        (['red'], 16711680)
    """

    def __init__(self, package: str, what: str, *, search: bool = True, also: Sequence[str] = ()) -> None:
        self._package, self._what, self._searched, self._also = package, what, not search, also
        self._found: dict[str, T] = {}

    def add(self, name: str, value: T) -> T:
        """Register an object; the same name twice is an error."""
        if name in self._found and self._found[name] is not value:
            raise OptionError(f"there are two {self._what}s with the name {name!r}")
        self._found[name] = value
        return value

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class or function."""
        return lambda value: self.add(name, value)

    def own(self) -> dict[str, T]:
        """Return what was registered from outside of the package: another process has to be given it by `update`."""
        inside = f"{self._package}."
        return {name: value for name, value in self._all().items() if not f"{value.__module__}.".startswith(inside)}

    def update(self, values: Mapping[str, T]) -> None:
        """Register objects in place of those that have the same names."""
        self._found.update(values)

    def __getitem__(self, name: str) -> T:
        # Only an unknown name needs all modules of the package.
        found = self._found if name in self._found else self._all()
        if name not in found:
            hint, names = did_you_mean(name, found), ", ".join(sorted(found))
            raise UnknownNameError(f"There is no {self._what} {name!r}.{hint} There are: {names}.")
        return found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._searched:
            self._searched = True
            try:
                package = importlib.import_module(self._package)
                found = pkgutil.walk_packages(package.__path__, f"{self._package}.")
                for name in (*(module.name for module in found), *self._also):
                    importlib.import_module(name)
            except BaseException:
                self._searched = False  # never work on with a part of the names
                raise
        return self._found


# Here and not in their packages, so that the configuration can list names without importing its siblings.
LEARNERS: Registry[Any] = Registry("elign.lab.learners", "learner")
DATASETS: Registry[Any] = Registry("elign.lab.data", "data set")
