"""Work that the first process leads: a function that it calls is called by all processes, with the same arguments.

Readings are one process's work, and what it does next depends on files that only it looks at. The others wait, and lend
a hand with what goes through a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from elign.lab.experiments.engine import Engine


class _Named(NamedTuple):
    """Stands for something that every process has one of."""

    name: str


class Crew:
    """The processes of a run, while the first one leads.

    Args:
        engine: The engine of the run.
        known: What every process has one of, by name: models and images, which are not sent.
    """

    def __init__(self, engine: Engine, known: Mapping[str, Any]) -> None:
        self._engine, self._known = engine, known

    def follow(self) -> None:
        """Do what the first process calls for, until it leads no longer."""
        while (call := self._engine.of_first(lambda: None)) is not None:
            function, arguments, options = call
            function(
                *(self._known[value.name] if isinstance(value, _Named) else value for value in arguments),
                engine=self._engine,
                **options,
            )

    @contextmanager
    def led(self) -> Iterator[None]:
        """In the first process: within this, `call` has the others join in."""
        self._engine.crew = self
        try:
            yield
        finally:
            self._engine.crew = None
        # Not after an error: the others then end with this process.
        self._engine.of_first(lambda: None)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Have the others call a function that the first process is about to begin itself."""
        names = {id(value): _Named(name) for name, value in self._known.items()}
        sent = (function, [names.get(id(value), value) for value in arguments], options)
        self._engine.of_first(lambda: sent)


def call_all(engine: Engine, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """At the beginning of a function that all processes must be in: calls them, where they are not there by themselves.

    Args:
        engine: The engine of the run.
        function: The function, of a module.
        arguments: What it was given, without the engine.
        options: The same by keyword.
    """
    if engine.crew is not None:
        engine.crew.call(function, *arguments, **options)
