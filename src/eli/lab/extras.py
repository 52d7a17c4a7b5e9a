"""Packages that only some parts of the bench need. Imported by those parts.

A part that needs one looks for it before it writes anything, and says what to install.
"""

from __future__ import annotations

from eli.errors import EliError


class MissingExtraError(EliError):
    """A part of the bench needs a package that is not installed; the message says which."""
