"""What tests share: small problems of drift, aligners, models with a head, and what makes runs and reports quick."""

from __future__ import annotations

import os
from contextlib import contextmanager

# Before torch is loaded, which reads them once; what tests start inherits them. Tensors here are tiny, and tests share
# the processors: a second thread that waits by spinning takes a processor from whoever has work for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings
from tests.aligning import MAKERS, learned
from torch import nn

import elign

# The same examples on every run: a failure on somebody else's machine can be repeated on one's own.
settings.register_profile("elign", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("elign")
# Whatever the environment says.
torch.set_num_threads(1)

DIM = 6


@pytest.fixture
def pairs():
    """Previous and current latents of 200 inputs: the drift is a rotation by a quarter of a turn and a shift."""
    generator = torch.Generator().manual_seed(7)
    z_prev = torch.randn(200, DIM, generator=generator)
    turn = torch.eye(DIM)
    turn[:2, :2] = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    return z_prev, z_prev @ turn.t() + 2.0


class Net(nn.Module):
    """A body with batch normalisation and dropout, and a head called `fc`."""

    def __init__(self, inputs: int = 5, dim: int = DIM, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, dim), nn.BatchNorm1d(dim), nn.Tanh(), nn.Dropout(0.5))
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        return self.fc(self.body(x))


@pytest.fixture
def net():
    torch.manual_seed(3)
    return Net().eval()


@pytest.fixture
def x():
    """Nine inputs of `net`."""
    return torch.randn(9, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=MAKERS)
def make_aligner(request):
    """Makes an aligner; a test that asks for it runs once for each kind."""
    return MAKERS[request.param]


@pytest.fixture
def fitted(make_aligner, pairs):
    return learned(make_aligner(), *pairs)


@pytest.fixture
def shift(pairs):
    """A fitted aligner that certainly moves every latent."""
    return elign.MeanShift().fit_latents(*pairs)


@pytest.fixture
def short_energy(pairs):
    """A fitted energy aligner, after few iterations."""
    return elign.EnergyAligner(hidden=(8, 8), iterations=20, learning_rate=1e-2, steps=5).fit_latents(*pairs)


@pytest.fixture(scope="session")
def quick_detection():
    """What to type for a real detection run that takes seconds: few small scenes, a step or two of everything."""
    typed = "preset=smoke protocol=5+5 data.scenes=[16,14] data.image_size=64 model.min_size=64 model.anchors=[16,32] "
    typed += "model.rois=16 model.proposals=12 train.first_epochs=2 train.epochs=2 train.batch_size=4 "
    return tuple((typed + "train.learning_rate=0.01 aligner.iterations=10 aligner.steps=2").split())


@pytest.fixture(scope="session")
def map_of_few():
    """While this context is open, a report's map of the latent space takes few images and little patience."""

    @contextmanager
    def few():
        from elign.lab.report import latent_space

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(latent_space, "ITERATIONS", 300)
            patch.setattr(latent_space, "OLD_IMAGES", 40)
            patch.setattr(latent_space, "NEW_IMAGES", 40)
            yield

    return few


@pytest.fixture(scope="module")
def small_maps(map_of_few):
    """For files whose tests make reports and do not look at where the points of a map are."""
    with map_of_few():
        yield


@pytest.fixture
def untouched_random_state():
    """Fails the test if it draws from the global random numbers of torch or numpy."""
    import numpy as np

    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
