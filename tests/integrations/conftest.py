"""What the tests of the adapters share: the embedded digits, the stand-ins, and the real libraries where they are.

Without Avalanche, Lightning, transformers or timm their tests are skipped; with ELIGN_REQUIRE_INTEGRATIONS=1, as in
`scripts/test-integrations`, they fail instead: there the libraries are promised.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from elign.lab.data.digits import load_digits_dataset


class Digits:
    """Pixels in 0..1 as vectors of 64, and labels; digits 0 to 4 are the old task, 5 to 9 the new one."""

    def __init__(self) -> None:
        data = load_digits_dataset()
        self.train = data.train_images.flatten(1).float() / 255, data.train_labels
        self.test = data.test_images.flatten(1).float() / 255, data.test_labels

    def of(self, classes, *, part="train"):
        """Images and labels of some classes."""
        x, y = getattr(self, part)
        chosen = torch.isin(y, torch.as_tensor(list(classes)))
        return x[chosen], y[chosen]


class Net(nn.Module):
    """A body and a head called `classifier`, as Avalanche and mammoth have it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 10)

    def forward(self, x):
        return self.classifier(self.body(x))


@pytest.fixture(scope="session")
def digits() -> Digits:
    return Digits()


@pytest.fixture
def new_net():
    """Makes equal networks."""

    def make() -> Net:
        torch.manual_seed(0)
        return Net()

    return make


@pytest.fixture(scope="session")
def stand_in():
    """Loads a stand-in of this folder by its name."""

    def load(name: str) -> ModuleType:
        full = f"elign_test_{name}"
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
            sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[full])
        return sys.modules[full]

    return load


def _require(library: str, package: str) -> ModuleType:
    if importlib.util.find_spec(library) is None:
        reason = f"{library} is not installed (pip install {package}): scripts/test-integrations runs this test"
        if os.environ.get("ELIGN_REQUIRE_INTEGRATIONS") == "1":
            pytest.fail(f"required here, but {reason}")
        pytest.skip(reason)
    if importlib.util.find_spec("torchvision") is not None:
        # They import it, and a build for CUDA does not import beside a CPU build of torch.
        from elign.lab.detection.operators import prepare

        prepare()
    return importlib.import_module(library)


@pytest.fixture(scope="session")
def avalanche() -> ModuleType:
    return _require("avalanche", "avalanche-lib==0.6.0")


@pytest.fixture(scope="session")
def lightning() -> ModuleType:
    return _require("lightning", "lightning")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    return _require("transformers", "transformers accelerate")


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    return _require("timm", "timm")
