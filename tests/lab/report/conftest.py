"""What the tests of the report share: a made-up walk of latents, made-up runs, and real runs that take seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from elign.lab.cli.main import main
from elign.lab.evaluation.methods import METHODS
from elign.lab.evaluation.metrics import Row
from elign.lab.report.figures import PALETTE
from elign.lab.report.latent_space import LatentWalk
from elign.lab.report.run_groups import Run, RunGroup
from elign.lab.runs.run_dir import RunDir


def make_walk(n: int = 200, m: int = 200, dimension: int = 32, last: int = 30, seed: int = 0) -> LatentWalk:
    """Clusters that have drifted, and walk most of the way back."""
    generator = np.random.default_rng(seed)
    old_labels = generator.integers(0, 5, n)
    new_labels = generator.integers(5, 10, m)
    centres = 1.6 * generator.normal(size=(10, dimension))
    previous = centres[old_labels] + generator.normal(size=(n, dimension))
    # Drift: each class is moved towards the place of the next one, everything is pressed together and blurred.
    next_class = centres[(old_labels + 1) % 5]
    current = 0.35 * centres[old_labels] + 0.45 * next_class + 1.3 * generator.normal(size=(n, dimension))
    # The walk slows down and stops short of the target, as descent does.
    parts = 0.8 * (1 - np.exp(-3 * np.arange(last + 1) / max(last, 1)))
    trajectory = current + parts[:, None, None] * (previous - current)
    distance = ((trajectory[:, :, None] - centres[:5]) ** 2).sum(-1)
    new_current = centres[new_labels] + generator.normal(size=(m, dimension))
    energy = {
        "old, previous model": generator.normal(-4, 1, 1000),
        "old, current model": generator.normal(3, 1.5, 1000),
        "old, aligned": generator.normal(-3, 1.2, 1000),
        "new, previous model": generator.normal(-4.5, 1, 1000),
        "new, current model": generator.normal(4, 1.2, 1000),
    }
    return LatentWalk(
        old_labels=old_labels,
        new_labels=new_labels,
        old_previous=previous.astype(np.float32),
        old_trajectory=trajectory.astype(np.float32),
        new_current=new_current.astype(np.float32),
        correct=distance.argmin(-1) == old_labels,
        energy={name: values.astype(np.float32) for name, values in energy.items()},
        class_names=tuple(f"digit {digit}" for digit in range(10)),
        old_classes=5,
    )


@pytest.fixture(scope="session")
def build_walk() -> Callable[..., LatentWalk]:
    return make_walk


QUICK = ("data=digits", "protocol.first=4", "protocol.increment=3", "data.limit=20", "train.first_epochs=2")
QUICK += ("train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory) -> Path:
    """Real runs of three tasks: two seeds of one experiment, one of another."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in (("icarl-0", ["seed=0"]), ("icarl-1", ["seed=1"]), ("lucir", ["learner=lucir"])):
        assert main(["run", *QUICK, *options, f"out={folder / name}"]) == 0
    return folder


CONFIG = {
    "learner": {"name": "icarl", "options": {"temperature": 2.0}},
    "data": {"name": "digits"},
    "protocol": {"name": "half-2", "first": None, "increment": None},
    "model": {"name": "conv"},
    "memory": {"budget": None, "per_class": 10},
    "aligner": {"space": "latent"},
}


def make_run(
    accuracies: Mapping[str, Sequence[float]], *, seed: int = 0, planned: int = 3, classifier: str = "fc"
) -> Run:
    """A run with these accuracies after its tasks, in %, for each method; old, new and by task are made up of them."""
    tasks = len(accuracies["base"])
    rows = [
        Row(
            task=task,
            method=name,
            classifier="prototypes" if name.startswith("forward/") else classifier,
            label_free=not METHODS[name].uses_labels,
            accuracy=values[task - 1] / 100,
            old=None if task == 1 else values[task - 1] / 100,
            new=None if task == 1 else 0.9,
            among_old=None if task == 1 else values[task - 1] / 100,
            gate_accuracy=None,
            aligned_share=0.0,
            by_task=(values[task - 1] / 100,) * task,
        )
        for name, values in accuracies.items()
        for task in range(1, tasks + 1)
        if task > 1 or name == "base" or name.startswith("forward/")
    ]
    drift = {name: {"distance": 2.0, "cosine_distance": 0.1, "moved": 0.0} for name in ("base", "eli")}
    metadata = {"config": {**CONFIG, "seed": seed}, "sizes": [4] + [3] * (planned - 1), "environment": {"python": "3"}}
    metadata |= {"classes": [str(number) for number in range(10)], "overrides": ["data=digits"]}
    metadata |= {"benchmark": "classification" if classifier == "fc" else "detection"}
    done = [{"task": t, "seconds": {"train": 1.0}, "drift": drift if t > 1 else {}} for t in range(1, tasks + 1)]
    return Run(RunDir(Path(f"run-{seed}")), metadata, rows, done)


@pytest.fixture
def build_group() -> Callable[..., RunGroup]:
    """A group whose methods have these accuracies after each of three tasks; each seed adds a little."""

    def build(
        seeds: int = 1, name: str = "icarl on digits, half-2", classifier: str = "fc", **accuracies: Sequence[float]
    ) -> RunGroup:
        named = {key.replace("__", "/").replace("_", "-"): values for key, values in accuracies.items()}
        runs = [
            make_run({k: [v + s for v in vs] for k, vs in named.items()}, seed=s, classifier=classifier)
            for s in range(seeds)
        ]
        return RunGroup(name, tuple(runs))

    return build


VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Collects elements, visible text and scripts, and checks that every element is closed in order."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.style = ""
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[-1] += data
        elif inside == "style":
            self.style += data
        else:
            self.text += data.replace("\u00a0", " ")

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="session")
def parse() -> type[Page]:
    return Page


def _resolved(value):
    """The specification with colour names replaced, as the page's script does; unknown names fail."""
    if isinstance(value, str) and value.startswith("@"):
        return PALETTE[value[1:].split("/")[0]][0]
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items()}
    return value


@pytest.fixture
def resolved():
    return _resolved
