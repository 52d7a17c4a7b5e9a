"""Objects and detections by hand."""

from __future__ import annotations

import torch

from elign.lab.detection.average_precision import Detections
from elign.lab.detection.data import Objects


def objects(*entries) -> Objects:
    """Entries are (box, label) or (box, label, difficult)."""
    return Objects(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
        difficult=torch.tensor([len(entry) > 2 and entry[2] for entry in entries], dtype=torch.bool),
    )


def found(*entries) -> Detections:
    """Entries are (box, label, score)."""
    return Detections(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor([entry[2] for entry in entries], dtype=torch.float32),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
    )
