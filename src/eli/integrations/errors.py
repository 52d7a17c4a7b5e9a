"""The error of an adapter whose framework is not there. Imported by the adapters."""

from __future__ import annotations

from eli.errors import EliError


class MissingLibraryError(EliError, ImportError):
    """An adapter was imported, but its framework is not installed; the message says what to install."""
