"""Thin adapters of `eli` for other people's frameworks: Avalanche, Lightning, PyCIL and mammoth.

Each is a module of its own, imported by name (`from eli.integrations.avalanche import ELIPlugin`); this package itself
imports none of the frameworks. What the adapters share is `TaskAlignment`, which serves a training loop of one's own,
too.
"""

from eli.integrations.errors import MissingLibraryError
from eli.integrations.task_alignment import TaskAlignment

__all__ = ["MissingLibraryError", "TaskAlignment"]
