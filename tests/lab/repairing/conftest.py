"""Small real data: the embedded digits as folders of pictures, and a network that learns 0 to 4, then 5 to 9."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from elign.lab.cli.main import main
from elign.lab.data.digits import load_digits_dataset
from elign.lab.repairing.checkpoints import PlainTransform
from elign.lab.repairing.class_folders import ClassFolder

SIZE = 16
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
# Sorted old names, then sorted new ones: the order of the outputs.
ORDER = sorted(NAMES[:5]) + sorted(NAMES[5:])

NETWORK = '''
import os
import pathlib

import torch
from torch import nn


class Net(nn.Module):
    """Counts the pictures it sees in the file SEEN names, and stops after as many as STOP says."""

    def __init__(self, num_classes, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, width), nn.ReLU()
        )
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        if "SEEN" in os.environ:
            file = pathlib.Path(os.environ["SEEN"])
            seen = int(file.read_text()) + len(x) if file.exists() else len(x)
            if seen > int(os.environ.get("STOP", 10**9)):
                raise KeyboardInterrupt
            file.write_text(str(seen))
        return self.fc(self.body(x))


def make(num_classes=1000):
    return Net(num_classes)


def chatty(num_classes=1000):
    print("a word on stdout")
    return Net(num_classes)


def wide():
    return Net(10, width=32)


def scaled():
    model = Net(10)
    model.register_forward_hook(lambda module, args, output: 2 * output)
    return model


def broken():
    raise RuntimeError("no such thing")


def nothing():
    return None
'''


@dataclass
class World:
    """Where all lies: class folders `old`, `new`, `few`, `test`, weights `old.pt`, `new.safetensors`, and `net.py`."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def model(self) -> str:
        return f"{self.folder / 'net.py'}:make"

    def make(self, name: str = "make", **options):
        spec = importlib.util.spec_from_file_location("elign_test_net", self.folder / "net.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)(**options)

    def load(self, name: str, outputs: int):
        model = self.make(num_classes=outputs)
        file = self.folder / name
        if file.suffix == ".safetensors":
            model.load_state_dict(safetensors.torch.load_file(file))
        else:
            state = torch.load(file, weights_only=True)["state_dict"]
            model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
        return model.eval()

    def inputs(self, name: str):
        """The pictures of a folder as the command prepares them, and their classes."""
        folder = ClassFolder.read(self.folder / name, f"--{name}")
        transform = PlainTransform(SIZE)
        x = torch.stack([transform(Image.open(folder.root / file).convert("RGB")) for file in folder.files])
        return x, folder.labels(ORDER)


def _write(folder: Path, images: torch.Tensor, labels: torch.Tensor, digits, most: int) -> None:
    for digit in digits:
        place = folder / NAMES[digit]
        place.mkdir(parents=True)
        for number, image in enumerate(images[labels == digit][:most]):
            picture = Image.fromarray(image[0].numpy())
            picture.resize((18, 18), Image.Resampling.BILINEAR).save(place / f"{number:03}.png")


def _train(model, x, labels, epochs, rate):
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), labels[rows]).backward()
            optimiser.step()
    return model.eval()


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """Make pictures and train the network twice; nothing in here is changed by a test."""
    made = World(tmp_path_factory.mktemp("world"))
    (made / "net.py").write_text(NETWORK)
    data = load_digits_dataset()
    for name, digits, most in (("old", range(5), 60), ("new", range(5, 10), 60), ("few", range(5), 5)):
        _write(made / name, data.train_images, data.train_labels, digits, most)
    _write(made / "test", data.test_images, data.test_labels, range(10), 20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        old = _train(made.make(num_classes=5), *made.inputs("old"), epochs=12, rate=2e-3)
        new = made.make(num_classes=10)
        state = new.state_dict()
        for name, value in old.state_dict().items():
            state[name][: len(value)] = value
        new.load_state_dict(state)
        _train(new, *made.inputs("new"), epochs=6, rate=1e-3)
    torch.save({"state_dict": {f"module.{k}": v for k, v in old.state_dict().items()}, "epoch": 3}, made / "old.pt")
    safetensors.torch.save_file(new.state_dict(), made / "new.safetensors")
    return made


@pytest.fixture(scope="session")
def statistics(world) -> Path:
    """What `elign remember` wrote for the old classes."""
    file = world / "classes.safetensors"
    command = ["remember", "--model", world.model, "--weights", world / "old.pt", "--data", world / "old"]
    assert main([*map(str, command), "--input-size", str(SIZE), "--out", str(file)]) == 0
    return file


@pytest.fixture(autouse=True)
def without_onnx(request, monkeypatch):
    """Act as if the extra `export` were missing, which saves seconds; `with_onnx` uses it."""
    if "with_onnx" not in request.fixturenames:
        monkeypatch.setattr("elign.lab.repairing.repair_job.missing_for_onnx", lambda: ["onnx"])


@pytest.fixture
def with_onnx():
    """Write ONNX files."""
    return pytest.importorskip("onnxruntime")


@pytest.fixture
def repair(world, capsys):
    """Runs `elign repair` with further options; returns the exit code, and the report as JSON or the error."""

    def run(*options, out: Path, **changed):
        given = {
            "model": world.model,
            "previous": world / "old.pt",
            "current": world / "new.safetensors",
            "new": world / "new",
            "input-size": SIZE,
            "out": out,
        }
        words = [str(word) for name, value in (given | changed).items() for word in (f"--{name}", value)]
        capsys.readouterr()
        code = main(["repair", *words, *map(str, options), "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if code == 0 else printed.err

    return run
