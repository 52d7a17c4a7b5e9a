"""Adapters of `elign` for Avalanche, Lightning, transformers, PyCIL and mammoth.

Each is a module of its own, imported by name (`from elign.integrations.avalanche import RepairPlugin`); the package
imports none of the frameworks. They share `TaskRepair`, which you can use in your own training loop, too.
"""

from elign.integrations.task_repair import TaskRepair, load_repaired
from elign.utils.errors import MissingLibraryError

__all__ = ["MissingLibraryError", "TaskRepair", "load_repaired"]
