"""Data sets of the bench. One file a data set: it registers a class with `DATASETS`."""

from __future__ import annotations

from elign.lab.data.base import (
    DATASETS,
    DamagedFileError,
    DataError,
    Dataset,
    DatasetNotFoundError,
    ImageData,
    catalogue,
    load_dataset,
    open_dataset,
)

__all__ = [
    "DATASETS",
    "DamagedFileError",
    "DataError",
    "Dataset",
    "DatasetNotFoundError",
    "ImageData",
    "catalogue",
    "load_dataset",
    "open_dataset",
]
