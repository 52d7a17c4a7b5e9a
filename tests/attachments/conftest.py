"""What tests of attachments share."""

import pytest
import torch
from tests.conftest import DIM

import elign


@pytest.fixture
def means():
    z = torch.randn(40, DIM, generator=torch.Generator().manual_seed(2))
    return elign.NearestMean(normalize=False).fit(z=z, labels=torch.arange(40) % 4)
