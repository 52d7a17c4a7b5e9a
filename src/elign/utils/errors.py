"""Every error that `elign` raises on bad input. Each message says what is wrong and what to do."""

from __future__ import annotations


class ElignError(Exception):
    """Base of all errors of this package, so that one `except` can catch them."""


class NotFittedError(ElignError, RuntimeError):
    """An object was used before it learned anything."""


class LatentError(ElignError, ValueError):
    """Latents that cannot be used: wrong shape or dimension, empty, not floating point, NaN or infinite."""


class OptionError(ElignError, ValueError):
    """An option outside its range; the message names the option and what it takes."""


class AttachError(ElignError, RuntimeError):
    """A head that cannot be found, is called without latents, or already has an attachment that conflicts."""


class FileFormatError(ElignError, ValueError):
    """A file that is damaged, was not written by this package, or is from a newer version of it."""


class MissingLibraryError(ElignError, ImportError):
    """An adapter was imported, but its framework is not installed; the message says what to install."""
