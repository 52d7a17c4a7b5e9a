"""The error of an adapter whose framework is not there."""

from __future__ import annotations

from elign.utils.errors import ElignError


class MissingLibraryError(ElignError, ImportError):
    """An adapter was imported, but its framework is not installed; the message says what to install."""
