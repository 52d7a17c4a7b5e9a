"""What the tests of the adapters share: the embedded digits, the stand-ins, and the real libraries where they are.

Without Avalanche, Lightning, transformers or timm their tests are skipped; with ELIGN_REQUIRE_INTEGRATIONS=1, as in
`scripts/test-integrations`, they fail instead: there the libraries are promised.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import Dataset

import elign
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


class Images(Dataset):
    """Digits of 16 x 16 pixels as dicts."""

    def __init__(self, data) -> None:
        self.pixels = interpolate(data[0].reshape(-1, 1, 8, 8), scale_factor=2)
        self.labels = data[1]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.pixels[index], "labels": self.labels[index]}


def make_vit(transformers):
    """A tiny ViT for `Images`; equal ones each time."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_channels=1, num_labels=10, **size)
    return transformers.ViTForImageClassification(config)


def make_classifier(lightning, net):
    """A `LightningModule` for digits that notes in `attached` when an evaluation is repaired."""

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classifier = net.body, net.classifier
            self.attached = []

        def forward(self, x):
            return self.classifier(self.body(x))

        def training_step(self, batch, batch_idx):
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx) -> None:
            self.attached.append(elign.detach(copy.deepcopy(self.classifier)) > 0)
            self(batch[0])

        test_step = validation_step

        def predict_step(self, batch, batch_idx):
            return self(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    return Classifier()


@pytest.fixture
def class_pictures():
    """Writes folders with pictures of two old and of two new classes, for the commands; their paths."""

    def write(folder: Path) -> tuple[Path, Path]:
        random = np.random.default_rng(0)
        for part, classes in (("old", "ab"), ("new", "cd")):
            for name in classes:
                (folder / part / name).mkdir(parents=True)
                base = random.integers(0, 200, (8, 8, 3))
                for number in range(12):
                    pixels = (base + random.integers(0, 56, (8, 8, 3))).astype(np.uint8)
                    Image.fromarray(pixels).resize((40, 36)).save(folder / part / name / f"{number}.png")
        return folder / "old", folder / "new"

    return write


@pytest.fixture
def module(lightning, new_net):
    """Makes equal modules for Lightning."""
    return lambda: make_classifier(lightning, new_net())


@pytest.fixture
def images():
    return Images


@pytest.fixture
def vit(transformers):
    return lambda: make_vit(transformers)


@pytest.fixture
def won_back():
    """Checks outputs for test digits with and without the repair.

    The networks themselves have forgotten every old class, and so has a repair whose statistics were not moved, or that
    takes the current model for the previous one.
    """

    def check(repaired, plain, labels, *, least):
        right = [(outputs.argmax(dim=1) == labels).float() for outputs in (repaired, plain)]
        old, new = ([each[chosen].mean().item() for each in right] for chosen in (labels < 5, labels >= 5))
        assert old[1] < 0.05
        assert old[0] > least
        assert new[0] > new[1] - 0.15

    return check


@pytest.fixture
def same_state():
    """Checks that two processes have the same repair, statistics and outputs."""

    def check(one, other):
        assert one["classes"] == other["classes"]
        assert one["classes"][1] == list(range(10))
        assert torch.equal(one["outputs"], other["outputs"])
        for part in ("fitted", "statistics"):
            assert one[part]["options"] == other[part]["options"]
            for name, tensor in one[part]["tensors"].items():
                assert torch.equal(tensor, other[part]["tensors"][name]), name

    return check


@pytest.fixture
def two_ranks(tmp_path):
    """Runs `two_ranks.py` with a framework; what each of the two processes has learned."""

    def run(framework):
        script = Path(__file__).with_name("two_ranks.py")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
        done = subprocess.run([*launch, framework, tmp_path], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]

    return run


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
    return load_framework(library)


def load_framework(library: str) -> ModuleType:
    """Import a framework."""
    if importlib.util.find_spec("torchvision") is not None:
        # They import it, and a build for CUDA does not import beside a CPU build of torch.
        from elign.lab.detection.operators import prepare

        prepare()
    return importlib.import_module(library)


def _framework(library: str, package: str):
    """Make a fixture that imports a framework where it is installed."""

    @pytest.fixture(scope="session", name=library)
    def fixture() -> ModuleType:
        return _require(library, package)

    return fixture


avalanche = _framework("avalanche", "avalanche-lib==0.6.0")
lightning = _framework("lightning", "lightning")
transformers = _framework("transformers", "transformers accelerate")
timm = _framework("timm", "timm")
