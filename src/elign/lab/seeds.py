"""Seeds for the parts of an experiment: each part its own stream, all of them decided by the experiment's seed."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose; equal numbers for two purposes would make, say, two networks start from equal weights."""
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)
    return int(state[0])
