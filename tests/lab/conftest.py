"""What all tests of the bench share: where real data may lie."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Where a copy of real data may lie: what ELI_SHARED_DATA names, else a folder beside the repository."""
    named = os.environ.get("ELI_SHARED_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
