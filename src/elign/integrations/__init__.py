"""Thin adapters of `elign` for other people's frameworks: Avalanche, Lightning, PyCIL and mammoth.

Each is a module of its own, imported by name (`from elign.integrations.avalanche import ELIPlugin`); the package
imports none of the frameworks. What the adapters share is `TaskAlignment`, which serves a training loop of one's own,
too.
"""

from elign.integrations.errors import MissingLibraryError
from elign.integrations.task_alignment import TaskAlignment

__all__ = ["MissingLibraryError", "TaskAlignment"]
