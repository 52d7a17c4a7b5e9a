"""The two-task experiment at the paper's latent dimensions, and at others.

`dimensions` is the toy as well: it is the one experiment where the latent dimension can be chosen and all else stays as
it is. In the class-incremental ones it comes with the backbone (64 on CIFAR-100, 512 on ImageNet, 2048 in detection).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console

import elign
from elign.lab.data import load_dataset
from elign.lab.experiments.toy_config import ToyConfig, default_config
from elign.lab.experiments.toy_result import SeedResult
from elign.lab.experiments.toy_run import run_toy
from elign.lab.experiments.toy_store import ToyStore
from elign.lab.progress import live_progress
from elign.lab.report import paper
from elign.lab.reproduce.comparison import Measured, comparison
from elign.lab.reproduce.grid import command
from elign.lab.reproduce.jobs import Experiment, Job
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.sheet import Sheet

_DATA = ("digits", "mnist", "fashion-mnist")
_SMOKE_ITERATIONS = 300
_CONTROLS = ("mean-shift", "ridge", "random-shift", "previous model")
_NOTE = "accuracy on task 1 after task 2; which task an image is of is known to every column alike, as in the paper"


def toy(request: Request) -> Experiment:
    """The paper's Section 3.3."""
    dims = (32,) if request.smoke else (32, 512)
    return _experiment("toy", "Section 3.3: two tasks, forgetting, and undoing it", dims, request)


def dimensions(request: Request) -> Experiment:
    """The same with latents of other dimensions."""
    title = "Latent dimensions: the two-task experiment"
    return _experiment("dimensions", title, (32, 64, 512, 2048), request)


def _experiment(name: str, title: str, dims: Sequence[int], request: Request) -> Experiment:
    remarks = request.left_out(name, takes=("data.data_dir",), data=_DATA)
    request = request.reduced(takes=("data.data_dir",), data=_DATA)
    configs = [_config(data, dim, request) for data in request.data_sets("mnist") for dim in dims]

    def sheet() -> Sheet:
        lines = [_measured(config, _stored(config, request)) for config in configs]
        headings = ("data", "dimension")
        notes = (_scale(configs, request), _NOTE)
        return comparison(name, title, headings, lines, aligned="eli", notes=notes, command=command(name, request))

    jobs = tuple(job for config in configs for job in _jobs(config, request))
    return Experiment(name, title, jobs, sheet, request, remarks)


def _config(data: str, dim: int, request: Request) -> ToyConfig:
    config = default_config(data, dim, "paper")
    return replace(config, iterations=_SMOKE_ITERATIONS) if request.smoke else config


def _folder(config: ToyConfig, request: Request) -> Path:
    return request.out / "toy" / f"{config.data}-{config.latent_dim}-{config.iterations}"


def _seeds(config: ToyConfig, request: Request) -> list[SeedResult | None]:
    """What is on disk of each seed; nothing is written if there is nothing."""
    folder = _folder(config, request)
    if not (folder / "settings.json").is_file():
        return [None] * request.seeds
    store = ToyStore(folder, asdict(config) | {"elign": elign.__version__})
    return [store.seed(seed) for seed in range(request.seeds)]


def _stored(config: ToyConfig, request: Request) -> list[SeedResult]:
    return [found for found in _seeds(config, request) if found is not None]


def _jobs(config: ToyConfig, request: Request) -> list[Job]:
    found = _seeds(config, request)
    known = [one.seconds_train + one.seconds_fit for one in found if one is not None]
    seconds = statistics.median(known) if known else None
    group = f"toy on {config.data}, {config.latent_dim} dimensions"
    folder = _folder(config, request)

    def job(seed: int, done: bool) -> Job:
        return Job(f"{folder} {seed}", group, done, seconds, lambda console: _run(config, request, seed, console))

    return [job(seed, one is not None) for seed, one in enumerate(found)]


def _run(config: ToyConfig, request: Request, seed: int, console: Console) -> None:
    data = load_dataset(config.data, data_dir=request.value("data.data_dir"))
    again = f"elign toy --data {config.data} --latent-dim {config.latent_dim} --heads paper --seeds {seed + 1}"
    threads = torch.get_num_threads()
    # How sums are split over threads would change their rounding, hence the numbers.
    torch.set_num_threads(1)
    try:
        with live_progress(console) as tell:
            run_toy(config, data, range(seed + 1), _folder(config, request), command=again, tell=tell)
    finally:
        torch.set_num_threads(threads)


def _measured(config: ToyConfig, seeds: Sequence[SeedResult]) -> Measured:
    def of(reading: str) -> tuple[float, ...]:
        return tuple(seed.readings[reading] for seed in seeds)

    controls = {name: of(name) for name in _CONTROLS}
    labels = (config.data, str(config.latent_dim))
    return Measured(labels, of("base"), of("eli"), controls, paper.toy(config.latent_dim))


def _scale(configs: Sequence[ToyConfig], request: Request) -> str:
    """Differences from the paper, which has MNIST with 32 and 512 dimensions and one seed."""
    found = []
    for config in configs:
        published = default_config("mnist", config.latent_dim, "paper")
        for key, value in asdict(config).items():
            other = asdict(published)[key]
            if value != other:
                found.append(f"{key.replace('_', ' ')} {value} instead of {other}")
    seeds = "the paper prints one run"
    if not found:
        return f"preset={request.preset}: the published settings; {seeds}"
    return f"preset={request.preset}, not the paper's scale: {'; '.join(dict.fromkeys(found))}; {seeds}"
