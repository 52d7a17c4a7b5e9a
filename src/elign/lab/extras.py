"""Packages that only some parts of the bench need.

A part that needs one looks for it before it writes anything, and says what to install.
"""

from __future__ import annotations

from elign.utils.errors import ElignError


class MissingExtraError(ElignError):
    """A part of the bench needs a package that is not installed; the message says which."""
