"""The two-task experiment of the paper's Section 3.3 as a benchmark of the bench.

A linear layer and two heads learn the first half of the classes, then the second half. Every method knows which task a
test image is of, as in the paper, and is measured on the images of task 1 after task 2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from importlib import resources
from itertools import chain, product
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import yaml
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner
from elign.aligners.energy import EnergyAligner
from elign.aligners.linear import MeanShift, RandomShift, Ridge
from elign.lab.config.composition import ConfigError, Count, validate
from elign.lab.config.schema import ALIGNER_DEFAULTS, TREE, ModelConfig, RunConfig, describe
from elign.lab.data.base import ImageData, first_of_each, load_dataset
from elign.lab.data.scenario import Memory
from elign.lab.environment import derive_seed
from elign.lab.evaluation.features import TaskLatents
from elign.lab.evaluation.methods import METHODS, Prediction
from elign.lab.evaluation.metrics import Row, curve, difference_text, mean_std, score, seeds_text
from elign.lab.evaluation.task_evaluation import Drift
from elign.lab.paper.comparison import Measured, comparison_tables, differences, numbers, printed_toy
from elign.lab.paper.plan import Evaluation as PlannedEvaluation
from elign.lab.paper.plan import Plan, Store, is_finished, planned_evaluation, planned_run, training_plan
from elign.lab.paper.request import Grid, Request
from elign.lab.report.run_groups import TABLES, RunGroup, value_cell
from elign.lab.report.table import Cell, Column, Table
from elign.lab.runs.experiment import BENCHMARKS, Classification, Evaluation, Experiment
from elign.lab.runs.launch import start_run
from elign.lab.runs.run_dir import RunDir
from elign.lab.training.trainer import Callback, Resume, TrainingProgress

TWO_TASK = "two-task"
DATA = ("digits", "mnist", "fashion-mnist")

_SETTINGS: Mapping[str, Mapping[str, str]] = yaml.safe_load(
    resources.files(__package__).joinpath("two_tasks.yaml").read_text(encoding="utf-8")
)
# Enough pairs for histograms of energies; the others are computed again in no time.
_KEPT_PAIRS = 2000
_SHOWN_EPOCHS = 10  # an epoch takes a fraction of a second


class LinearModelConfig(ModelConfig):
    """A linear layer."""

    latent_dim: Count


class TwoTaskConfig(RunConfig):
    """Everything that decides a two-task run; `learner.heads` is `paper` or `trained`.

    With `paper`, one optimizer made for task 1 goes on in task 2, as in the authors' notebook, so that the head of task
    2 stays at its random start and only the linear layer adapts.
    """

    benchmark: ClassVar[str] = TWO_TASK

    model: LinearModelConfig


class TwoHeads(nn.Module):
    """A linear layer to the latent, and for each task a head: ReLU and a linear layer."""

    def __init__(self, inputs: int, latent_dim: int, classes: Sequence[int]) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, latent_dim)
        self.heads = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(latent_dim, count)) for count in classes)

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Return the logits of one task's head."""
        logits: Tensor = self.heads[task](self.base(x))
        return logits


class TwoTaskLearner:
    """The model, the model before the last task, and what training needs to go on exactly where it stopped."""

    def __init__(self, inputs: int, latent_dim: int, sizes: Sequence[int], seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = TwoHeads(inputs, latent_dim, sizes)
            self.rng = torch.get_rng_state()
        self.teacher: TwoHeads | None = None
        self.momentum: list[Tensor] = []
        self._sizes, self._grown = list(sizes), 0

    def grow(self, classes: int) -> None:
        """Keep a copy of the model before a task."""
        self.teacher = deepcopy(self.model).eval() if self._grown else None
        self._grown += 1

    def eval(self) -> None:
        """Do nothing: the model has no layers that behave differently in training."""

    def state(self) -> dict[str, Tensor]:
        """Return all tensors; those of the heads as one head, which reports show."""
        heads = [head[1] for head in self.model.heads]  # type: ignore[index]
        return {
            **{f"model.base.{name}": tensor for name, tensor in self.model.base.state_dict().items()},
            "model.head.1.weight": torch.cat([head.weight.detach() for head in heads]),
            "model.head.1.bias": torch.cat([head.bias.detach() for head in heads]),
            **{f"momentum.{place}": tensor for place, tensor in enumerate(self.momentum)},
            "rng": self.rng,
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        heads = [torch.split(state[f"model.head.1.{name}"], self._sizes) for name in ("weight", "bias")]
        own = {f"base.{name}": state[f"model.base.{name}"] for name in ("weight", "bias")}
        for task in range(len(self._sizes)):
            own |= {f"heads.{task}.1.weight": heads[0][task], f"heads.{task}.1.bias": heads[1][task]}
        self.model.load_state_dict(own)
        self.momentum = [state[f"momentum.{place}"].clone() for place in range(4)]
        self.rng = state["rng"].clone()


@BENCHMARKS.register(TWO_TASK)
class TwoTaskExperiment(Experiment):
    """Two tasks with a head each: `elign toy`."""

    name = TWO_TASK
    command = "elign toy"
    version = 1
    comparable_from = 1
    knows_tasks = True
    tree = replace(TREE, model=TwoTaskConfig)

    config: TwoTaskConfig
    data: ImageData

    @classmethod
    def compose(cls, words: Sequence[str]) -> TwoTaskConfig:
        """Make a configuration: keys of `elign run`, `model.latent_dim` and `learner.heads`."""
        given = dict(word.split("=", 1) for word in words)
        data, dim = given.get("data", "digits"), given.pop("model.latent_dim", "32")
        heads = given.pop("learner.heads", "paper")
        if data not in DATA or not dim.isdecimal() or heads not in ("paper", "trained"):
            raise ConfigError(
                f"Two tasks need data={'|'.join(DATA)}, model.latent_dim=N and learner.heads=paper|trained, not "
                f"data={data}, model.latent_dim={dim} and learner.heads={heads}."
            )
        scale = "digits" if data == "digits" else "paper-512" if dim == "512" else "paper"
        smoke = _SETTINGS["smoke"] if given.get("preset") == "smoke" else {}
        defaults = {f"aligner.{name}": str(ALIGNER_DEFAULTS[name]) for name in ("steps", "step_size")}
        settings = {**defaults, **_SETTINGS["always"], **_SETTINGS[scale], **smoke, **given}
        values = describe(TREE.compose([f"{key}={value}" for key, value in settings.items()]))
        values["model"] = {"name": "linear", "latent_dim": int(dim)}
        values["learner"] |= {"name": "two-heads", "options": {"heads": heads}}
        return validate(TwoTaskConfig, values)

    missing_data = Classification.missing_data

    def open_data(self) -> ImageData:
        """Load the images."""
        return load_dataset(self.config.data.name, data_dir=self.config.data.data_dir)

    def learner(self) -> TwoTaskLearner:
        """Return an untrained model."""
        inputs = self.data.train_images[0].numel()
        seed = derive_seed(self.config.seed, "model")
        return TwoTaskLearner(inputs, self.config.model.latent_dim, self.protocol.sizes, seed)

    def memory(self) -> Memory:
        """Return an empty memory: no exemplars are kept."""
        return Memory(budget=None, per_class=None, selection="random", seed=0)

    def grow(self, learner: TwoTaskLearner, number: int) -> None:
        """Make the learner ready for a task."""
        learner.grow(self.protocol.sizes[number])

    def update_memory(self, learner: TwoTaskLearner, memory: Memory, number: int) -> None:
        """Keep no exemplars."""

    def images(self, number: int, *, test: bool = False) -> tuple[Tensor, Tensor]:
        """Return the images of a task as rows of numbers in [0, 1], and their labels."""
        data, classes = self.data, self.protocol.tasks[number]
        images, labels = (data.test_images, data.test_labels) if test else (data.train_images, data.train_labels)
        mine = (labels >= classes.start) & (labels < classes.stop)
        return images[mine].flatten(1).float() / 255, labels[mine]

    def train(
        self, learner: TwoTaskLearner, memory: Memory, number: int, *, callback: Callback, resume: Resume | None
    ) -> None:
        """Train the linear layer and a head; a task is too short to be saved in between."""
        x, labels = self.images(number)
        labels = labels - self.protocol.tasks[number].start
        paper = self.config.learner.options["heads"] == "paper"
        model, train = learner.model, self.config.train
        parameters = [*model.base.parameters(), *model.heads[0 if paper else number].parameters()]
        for parameter in parameters:
            # Zeros, not None: in the paper's variant the momentum of the old head must run out as it did there.
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.SGD(parameters, lr=train.learning_rate, momentum=train.momentum)
        for parameter, momentum in zip(parameters, learner.momentum if paper else [], strict=False):
            optimizer.state[parameter]["momentum_buffer"] = momentum
        epochs, size, start = train.epochs if number else train.first_epochs, min(train.batch_size, len(x)), time.time()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(learner.rng)
            for epoch in range(epochs):
                order = torch.randperm(len(x))[: len(x) // size * size].view(-1, size)
                for batch in order:
                    loss = F.cross_entropy(model(x[batch], number), labels[batch])
                    optimizer.zero_grad(set_to_none=False)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                if (epoch + 1) % _SHOWN_EPOCHS == 0 or epoch + 1 == epochs:
                    progress = (number, epoch, epochs, len(order), len(order), loss.item(), None, time.time() - start)
                    callback.on_step(TrainingProgress(*progress))
            learner.rng = torch.get_rng_state()
        learner.momentum = [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]

    def is_complete(self, number: int, evaluation: Evaluation) -> bool:
        """Return whether latents and aligner are there."""
        latents = evaluation.run.task_file(number, "latents")
        files = [latents, *([evaluation.target.aligner_file(1, "eli")] if number else [])]
        return all(file.is_file() for file in files)

    @torch.no_grad()
    def extract(
        self, learner: TwoTaskLearner, memory: Memory, number: int, evaluation: Evaluation
    ) -> tuple[TaskLatents, float]:
        """Compute the latents of a task, and keep those that reports show."""
        start = time.perf_counter()
        base = learner.model.base
        tests = [self.images(task, test=True) for task in range(number + 1)]
        x, labels = self.images(number)
        some = first_of_each(labels, 1)
        none = torch.empty(0, self.config.model.latent_dim)
        latents = TaskLatents(
            test=torch.cat([base(images) for images, _ in tests]),
            test_labels=torch.cat([each for _, each in tests]),
            new=base(x[some]),
            new_labels=labels[some],
            memory=none,
            memory_labels=labels[:0],
            pairs_previous=none if learner.teacher is None else learner.teacher.base(x),
            pairs_current=none if learner.teacher is None else base(x),
        )
        kept = {name: getattr(latents, name)[:_KEPT_PAIRS].clone() for name in ("pairs_previous", "pairs_current")}
        replace(latents, **kept).save(evaluation.run.task_file(number, "latents"))
        return latents, time.perf_counter() - start

    def evaluate(
        self, learner: TwoTaskLearner, latents: tuple[TaskLatents, float], number: int, evaluation: Evaluation
    ) -> tuple[list[Row], dict[str, Any]]:
        """Fit all aligners on pairs of task 2 and apply them to the test images of task 1."""
        current, extracting = latents
        old = len(self.images(0, test=True)[0])
        if not number:
            rows = [self._row("base", learner.model, [current.test], current.test_labels)]
            return rows, {"seconds": {"extract": extracting}, "drift": {}}
        assert learner.teacher is not None  # noqa: S101  (there is a task before)
        previous = TaskLatents.load(evaluation.run.task_file(0, "latents")).test
        z_old, z_new = current.test[:old], current.test[old:]
        start = time.perf_counter()
        aligners, moved = self._fit(current, z_old, evaluation.aligner)
        fitting = time.perf_counter() - start
        eli = aligners["eli"]
        values = {
            "base": (z_old, z_new),
            "eli/oracle": (moved["eli"], z_new),
            "eli/all": (moved["eli"], eli.align(z_new)),
            **{f"{name}/oracle": (moved[name], z_new) for name in ("ridge", "mean-shift", "random-shift")},
        }
        rows = [self._row(name, learner.model, each, current.test_labels) for name, each in values.items()]
        with_previous = deepcopy(learner.model)
        with_previous.heads[0] = learner.teacher.heads[0]
        rows.append(self._row("previous-model", with_previous, (previous, z_new), current.test_labels))
        eli.save(evaluation.target.aligner_file(number, "eli"))
        drift = {
            name: asdict(Drift.of(z, current=z_old, previous=previous)) for name, z in {"base": z_old, **moved}.items()
        }
        methods = time.perf_counter() - start - fitting
        return rows, {"seconds": {"extract": extracting, "fit": fitting, "methods": methods}, "drift": drift}

    def _fit(self, latents: TaskLatents, z_old: Tensor, aligner: Any) -> tuple[dict[str, Aligner], dict[str, Tensor]]:
        """Return the fitted aligners, and the latents of old images that each of them has moved."""
        energy_seed, random_seed = (derive_seed(self.config.seed, name) for name in ("energy model", "random shift"))
        pairs = latents.pairs_previous, latents.pairs_current
        eli = EnergyAligner(**aligner.options_of(EnergyAligner), seed=energy_seed).fit_latents(*pairs)
        moved = {"eli": eli.trajectory(z_old)[-1]}
        length = (moved["eli"] - z_old).norm(dim=1).mean().item()
        baselines: dict[str, Aligner] = {
            "ridge": Ridge(**aligner.options_of(Ridge)),
            "mean-shift": MeanShift(),
            "random-shift": RandomShift(norm=length, seed=random_seed),
        }
        moved |= {name: each.fit_latents(*pairs).align(z_old) for name, each in baselines.items()}
        return {"eli": eli, **baselines}, moved

    @torch.no_grad()
    def _row(self, name: str, model: TwoHeads, latents: Sequence[Tensor], labels: Tensor) -> Row:
        """Score latents of the test images of each task, each classified by the head of its task."""
        sizes = self.protocol.sizes[: len(latents)]
        # Logits of other tasks' classes than the image's own are never chosen.
        scores, row = torch.full((len(labels), sum(sizes)), -torch.inf), 0
        for task, z in enumerate(latents):
            classes = self.protocol.tasks[task]
            scores[row : row + len(z), classes.start : classes.stop] = model.heads[task](z)
            row += len(z)
        return score(METHODS[name], Prediction(scores, "fc"), labels, task_sizes=sizes)


METHOD_TEXTS: Mapping[str, tuple[str, str]] = {
    "previous model": ("previous-model", "before task 2 was learned, kept for old images: upper bound"),
    "base": ("base", "after task 2, nothing done: what was forgotten"),
    "eli": ("eli/oracle", "after task 2, latents aligned by the energy model"),
    "ridge": ("ridge/oracle", "baseline: linear map from current to previous latents, closed form, uses pairs"),
    "mean-shift": ("mean-shift/oracle", "baseline: one constant shift, the difference of the means"),
    "random-shift": ("random-shift/oracle", "baseline: as long as ELI's own shift, in a random direction"),
}
"""Names in tables, in their order, with the methods they stand for and what they are."""

_TASK_NOTE = "accuracy on task 1 after task 2; which task an image is of is known to every {} alike, as in the paper"


def task1_accuracy(rows: Sequence[Row], name: str) -> float:
    """Return the accuracy in percent on task 1 after task 2 of one of `METHOD_TEXTS`."""
    return 100 * curve(rows, METHOD_TEXTS[name][0], "fc")[-1].by_task[0]


@TABLES.register(TWO_TASK)
def two_task_table(groups: Sequence[RunGroup]) -> Table | None:
    """Return the accuracies on task 1 of finished two-task experiments, beside the paper's where it has them."""
    found = [
        (group, {name: [task1_accuracy(run.rows, name) for run in group.runs] for name in METHOD_TEXTS})
        for group in groups
        if group.runs[0].metadata["benchmark"] == TWO_TASK and group.tasks == 2
    ]
    if not found:
        return None
    seeds, several = len(found[0][0].runs), len(found) > 1
    paper = ["paper (%)"] if any(_printed(group.config) for group, _ in found) else []
    measured = "mean ± std (%)" if seeds > 1 else "accuracy (%)"
    table = Table(
        "Accuracy on task 1",
        [Column("method", "left"), measured, *paper, Column("what it is", "left")],
        caption=f"{_TASK_NOTE.format('row')}; {seeds_text(seeds)}",
        footnotes=[
            f"{f'{group.name}: ' if several else ''}{sentence}"
            for group, values in found
            for sentence in two_task_summary(values)
        ],
    )
    for group, values in found:
        printed = _printed(group.config)
        for name, (_, text) in METHOD_TEXTS.items():
            beside = [Cell(f"{printed[name]:g}", printed[name]) if name in printed else None] if paper else []
            style: Literal["mark", ""] = "mark" if name == "eli" else ""
            table.add(name, value_cell(values[name]), *beside, text, group=group.name if several else "", style=style)
    return table


def two_task_summary(values: Mapping[str, Sequence[float]]) -> list[str]:
    """Say what was forgotten, what ELI and the best baseline bring back, from the accuracies over seeds by name."""
    means = {name: mean_std(each).mean for name, each in values.items()}
    gain, agreement = difference_text(values["eli"], values["base"])
    best = max(("ridge", "mean-shift", "random-shift"), key=means.__getitem__)
    lead, of_seeds = difference_text(values[best], values["eli"])
    return [
        f"Accuracy on task 1 is {means['previous model']:.1f} % after task 1 and {means['base']:.1f} % after task 2.",
        f"ELI changes it to {means['eli']:.1f} %: {gain:+.1f} points, {agreement}.",
        f"The best baseline, {best}, reaches {means[best]:.1f} %: {lead:+.1f} points compared with ELI, {of_seeds}.",
    ]


def _printed(config: Mapping[str, Any]) -> dict[str, float]:
    """Return what the paper prints for the same experiment, if anything."""
    dim = str(config["model"]["latent_dim"])
    same = config["data"]["name"] == "mnist" and config["learner"]["options"]["heads"] == "paper"
    if not same or dim not in numbers()["toy_mnist"]["paper"]:
        return {}
    printed = printed_toy(int(dim))
    before = round(numbers()["toy_mnist"]["notebooks"][dim]["task1_before"], 2)
    return {"previous model": before, "base": printed.base or 0.0, "eli": printed.aligned or 0.0}


def run_seeds(
    config: TwoTaskConfig, seeds: Sequence[int], folder: Path, console: Console, *, typed: Sequence[str] = ()
) -> list[RunDir]:
    """Run seeds that are not finished, each in a folder of its own; `typed` is kept for readers.

    Raises:
        RunError: A folder holds another run.
    """
    runs = []
    for seed in seeds:
        run = RunDir(folder / f"seed-{seed}")
        own = config.replace(seed=seed, out=str(run.path))
        if not (is_finished(run) and TwoTaskExperiment.from_dict(run.metadata()["config"]).digest() == own.digest()):
            console.print(f"seed {seed}")
            start_run(own, console, overrides=typed)
        runs.append(run)
    return runs


def two_task_plan(name: str, grid: Grid, request: Request) -> Plan:
    """Plan the experiment on some data sets and latent dimensions."""
    request, remarks = request.reduced(name, takes=("data.data_dir",), data=DATA)
    dims = grid.smoke_dimensions if request.smoke else grid.dimensions
    data_sets = request.data or (("digits",) if request.smoke else grid.data)
    lines: dict[tuple[str, int], list[PlannedEvaluation]] = {}
    for data, dim in product(data_sets, dims):
        own = replace(request, settings=(*request.settings, f"model.latent_dim={dim}"))
        runs = (planned_run(own, TWO_TASK, "finetune", data, "equal-2", seed) for seed in range(request.seeds))
        named = (replace(run, learner="toy", protocol=f"latent-{dim}") for run in runs)
        lines[data, dim] = [planned_evaluation(run) for run in named]

    def tables(store: Store) -> list[Table]:
        measured = []
        for (data, dim), evaluations in lines.items():
            rows = [store.rows(each) for each in evaluations]
            values = {each: [task1_accuracy(seed, each) for seed in rows] for each in METHOD_TEXTS}
            baselines = {each: values[each] for each in ("mean-shift", "ridge", "random-shift", "previous model")}
            measured.append(Measured((data, str(dim)), values["base"], values["eli"], baselines, printed_toy(dim)))
        # The paper's runs are on MNIST with one seed.
        published = (TwoTaskExperiment.compose(["data=mnist", f"model.latent_dim={dim}"]) for _, dim in lines)
        found = differences(zip((each[0].config for each in lines.values()), published, strict=True))
        scale = f", not the paper's: {'; '.join(found)}" if found else ": the published settings"
        notes = (f"preset={request.preset}{scale}; the paper prints one run", _TASK_NOTE.format("column"))
        headings, command = ("data", "dimension"), request.command(name)
        return comparison_tables(grid.title, headings, measured, aligned="eli", notes=notes, command=command)

    plan = training_plan(name, grid, request, TWO_TASK, [*chain.from_iterable(lines.values())], tables)
    return replace(plan, remarks=remarks)
