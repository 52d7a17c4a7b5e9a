"""The latent space of a run before and after alignment: a map of the Langevin steps, moves and energies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import euclidean_distances
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.aligners.energy import EnergyAligner
from elign.lab.evaluation.features import TaskLatents
from elign.lab.evaluation.inputs import AlignTarget
from elign.lab.models.growing_heads import CosineHead, LinearHead, SplitCosineHead
from elign.lab.report.figures import (
    CLASS_COLOURS,
    Figure,
    Frames,
    Spec,
    axis,
    class_colour,
    floats,
    layout,
    plotly_text,
)
from elign.lab.report.run_groups import Run, RunGroup
from elign.lab.runs.experiment import benchmark_of
from elign.lab.runs.run_dir import RunDir
from elign.lab.storage import DamagedRunError, read_tensors
from elign.utils.errors import ElignError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OLD_IMAGES = 150
NEW_IMAGES = 150
STEPS = 11
# The neighbour search's cost grows with the dimension: 50 principal components are the usual cut.
COMPONENTS = 50
PERPLEXITY = 30.0
# Half of the usual number: about 2000 rows then take about 5 s on one core, and the map looks the same.
ITERATIONS = 500
# With fewer neighbours than this t-SNE is meaningless and the principal plane is shown instead.
FEWEST_NEIGHBOURS = 8


@dataclass(frozen=True, eq=False)
class LatentWalk:
    """Latents of test images on their way down the energy (n old and m new images, D dimensions, L steps).

    Args:
        old_labels: (n,) classes of old images.
        new_labels: (m,) classes of new images.
        old_previous: (n, D) latents of old images under the previous model: where they should be.
        old_trajectory: (L + 1, n, D) the same images under the current model, from unaligned to aligned.
        new_current: (m, D) latents of new images under the current model.
        correct: (L + 1, n) whether the old image is classified correctly at that step.
        energy: Energies of old and new images under both models, by name.
        class_names: Of all classes.
    """

    old_labels: NDArray[np.int64]
    new_labels: NDArray[np.int64]
    old_previous: NDArray[np.float32]
    old_trajectory: NDArray[np.float32]
    new_current: NDArray[np.float32]
    correct: NDArray[np.bool_]
    energy: Mapping[str, NDArray[np.float32]]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Embedding:
    """Positions in one common plane (n' old and m' new images, S steps)."""

    old_index: IntArray
    """(n',) rows of the walk's old images that are shown."""
    new_index: IntArray
    """(m',) rows of the walk's new images that are shown."""
    steps: IntArray
    """(S,) the Langevin steps that are shown, first and last included."""
    previous: FloatArray
    """(n', 2) old images under the previous model."""
    trajectory: FloatArray
    """(S, n', 2) old images under the current model at each shown step."""
    new: FloatArray
    """(m', 2) new images under the current model."""

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return ranges of x and y that hold all points of all steps."""
        everything = np.concatenate([self.previous, self.trajectory.reshape(-1, 2), self.new])
        if not len(everything):
            return (-1.0, 1.0), (-1.0, 1.0)
        low, high = everything.min(axis=0), everything.max(axis=0)
        room = 0.05 * (high - low) + 1e-3
        return (float(low[0] - room[0]), float(high[0] + room[0])), (float(low[1] - room[1]), float(high[1] + room[1]))


def balanced_subset(labels: NDArray[np.int64], limit: int) -> IntArray:
    """Return increasing rows of at most `limit` items: the first of each class, then the second of each, and so on."""
    turn = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    order = np.lexsort((labels, turn))
    return np.sort(order[:limit]).astype(np.int64)


def shown_steps(last: int, count: int = STEPS) -> IntArray:
    """Return about `count` evenly spaced steps of 0..last, both ends included."""
    return np.unique(np.linspace(0, last, count).round().astype(np.int64))


def finite_images(walk: LatentWalk) -> NDArray[np.bool_]:
    """Return (n,) which old images have finite latents throughout: steps that are too long can overflow."""
    walked = np.isfinite(walk.old_trajectory).all(axis=(0, 2))
    return np.asarray(walked & np.isfinite(walk.old_previous).all(axis=1))


def _principal(rows: FloatArray) -> FloatArray:
    """Return (k, c) rows in 2 to `COMPONENTS` principal axes, filled up with zeros."""
    centred = rows - rows.mean(axis=0)
    axes = PCA(min(COMPONENTS, *rows.shape), svd_solver="full").fit_transform(centred) if np.any(centred) else centred
    return np.asarray(np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1])))), dtype=np.float64)


def _plane(rows: FloatArray, image: IntArray, *, seed: int) -> FloatArray:
    """Return (k, 2) positions of (k, D) rows: t-SNE, or the principal plane if there are too few rows.

    An image at one step is the nearest neighbour of itself at the next step. Such pairs would tie each walk into a
    knot and hide its length, so rows of the same image do not count as neighbours.

    Args:
        rows: The latents.
        image: (k,) which image each row shows.
        seed: Seed of t-SNE.
    """
    if not len(rows):
        return np.zeros((0, 2))
    axes = _principal(rows)
    distances = euclidean_distances(axes)
    furthest = float(distances.max())
    same = image[:, None] == image[None, :]
    neighbours = len(rows) - int(same.sum(axis=1).max())
    if neighbours < FEWEST_NEIGHBOURS or furthest == 0.0:
        return axes[:, :2]
    distances[same] = 10 * furthest
    np.fill_diagonal(distances, 0.0)
    tsne = TSNE(
        metric="precomputed",
        perplexity=min(PERPLEXITY, neighbours / 3),
        # What scikit-learn's init="pca" does, which it does not offer for given distances.
        init=(1e-4 * axes[:, :2] / axes[:, 0].std()).astype(np.float32),
        max_iter=ITERATIONS,
        random_state=seed,
        n_jobs=1,
    )
    return np.asarray(tsne.fit_transform(distances.astype(np.float32)), dtype=np.float64)


def embed(walk: LatentWalk, *, seed: int = 0) -> Embedding:
    """Place a class-balanced part of the latents in one plane; the same walk and seed give the same positions."""
    finite = np.flatnonzero(finite_images(walk))
    old = finite[balanced_subset(walk.old_labels[finite], OLD_IMAGES)]
    new = balanced_subset(walk.new_labels, NEW_IMAGES)
    steps = shown_steps(len(walk.old_trajectory) - 1)
    trajectory = walk.old_trajectory[np.ix_(steps, old)]
    dimension = trajectory.shape[-1]
    rows = np.concatenate([walk.old_previous[old], trajectory.reshape(-1, dimension), walk.new_current[new]])
    image = np.concatenate([np.tile(np.arange(len(old)), 1 + len(steps)), len(old) + np.arange(len(new))])
    # Sums over several threads depend on their order: one thread makes two runs equal.
    with threadpool_limits(1):
        positions = _plane(rows.astype(np.float64), image, seed=seed)
    first, last = len(old), len(old) * (1 + len(steps))
    return Embedding(
        old_index=old,
        new_index=new,
        steps=steps,
        previous=positions[:first],
        trajectory=positions[first:last].reshape(len(steps), len(old), 2),
        new=positions[last:],
    )


_RIGHT, _WRONG = "circle", "x"


def class_name(walk: LatentWalk, label: int) -> str:
    """Return the name of a class, or its number if it has no name."""
    return walk.class_names[label] if 0 <= label < len(walk.class_names) else str(label)


def _points(positions: NDArray[Any], **more: object) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": floats(positions[:, 0], 2),
        "y": floats(positions[:, 1], 2),
        "hovertemplate": "%{fullData.name}<extra></extra>",
        **more,
    }


def _step_text(walk: LatentWalk, embedding: Embedding, step: int) -> str:
    shown = walk.correct[step, embedding.old_index]
    share = f"{100 * float(shown.mean()):.0f} %" if len(shown) else "none"
    return f"step {step} of {len(walk.old_trajectory) - 1}, {share} of the points shown are classified correctly"


def _background(walk: LatentWalk, embedding: Embedding, members: dict[int, NDArray[np.bool_]]) -> list[Spec]:
    """Draw what does not move: new images, and old images under the previous model."""
    new = _points(embedding.new, name="new task", marker={"color": "@new", "size": 4, "opacity": 0.55})
    targets = [
        _points(
            embedding.previous[inside],
            name=f"{plotly_text(class_name(walk, label))}, previous model",
            legendgroup="targets",
            showlegend=False,
            marker={
                "symbol": "circle-open",
                "color": class_colour(position),
                "size": 9,
                "opacity": 0.32,
                "line": {"width": 1.2},
            },
        )
        for position, (label, inside) in enumerate(members.items())
    ]
    return [new, *targets]


def _legend_only(name: str, symbol: str, **marker: object) -> Spec:
    """Return a legend entry for a symbol that several traces use."""
    mark = {"symbol": symbol, "color": "@soft", "size": 8, **marker}
    return {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name, "marker": mark}


def latent_figure(walk: LatentWalk, embedding: Embedding) -> Figure:
    """Draw old latents coloured by class over their targets and the new task, with a slider for the steps."""
    labels = walk.old_labels[embedding.old_index]
    members = {int(label): labels == label for label in np.unique(labels)}
    right = walk.correct[:, embedding.old_index]
    data = _background(walk, embedding, members)
    frames = Frames(
        traces=list(range(len(data), len(data) + len(members))),
        x=[[floats(plane[inside, 0], 2) for inside in members.values()] for plane in embedding.trajectory],
        y=[[floats(plane[inside, 1], 2) for inside in members.values()] for plane in embedding.trajectory],
        symbols=[
            [[_RIGHT if ok else _WRONG for ok in right[step, inside]] for inside in members.values()]
            for step in embedding.steps
        ],
        texts=[_step_text(walk, embedding, int(step)) for step in embedding.steps],
    )
    entries: list[Spec] = []
    for position, (label, inside) in enumerate(members.items()):
        marker: Spec = {
            "symbol": frames.symbols[0][position],
            "color": class_colour(position),
            "size": 8,
            "line": {"width": 0.6, "color": "@page"},
        }
        name = plotly_text(class_name(walk, label))
        group = {"name": name, "legendgroup": f"class {position}"}
        data.append(_points(embedding.trajectory[0][inside], marker=marker, showlegend=False, **group))
        # The legend would otherwise show the symbol of the class's first point, which may be a cross.
        entries.append(_legend_only(name, _RIGHT, color=marker["color"]) | group)
    entries.append(_legend_only("classified wrongly", _WRONG))
    entries.append(_legend_only("previous model", "circle-open", line={"width": 1.2}) | {"legendgroup": "targets"})
    data += entries
    x_range, y_range = embedding.limits()
    # t-SNE's axes have no unit, so none is shown; the ranges are fixed so that nothing but the points moves.
    bare: Spec = {"showticklabels": False, "zeroline": False, "showgrid": False, "fixedrange": False, "ticks": ""}
    bare |= {"showline": True, "mirror": True}
    return Figure(
        data,
        layout(
            xaxis=axis(range=list(x_range), **bare),
            yaxis=axis(range=list(y_range), **bare),
            # Replaced by the page on touch screens, where dragging must scroll.
            dragmode="zoom",
        ),
        f"Scatter plot of {len(labels)} old and {len(embedding.new_index)} new latents in a common t-SNE plane. "
        f"First: {frames.texts[0]}. Last: {frames.texts[-1]}.",
        "The slider moves the latents of old images down the energy. Colours are classes; crosses are images that the "
        "head classifies wrongly; open circles are the same images under the previous model; grey dots are images of "
        "the new task. All steps share one t-SNE map. Near points are similar, but distances across the map mean "
        f"little: the head decides in all {walk.old_previous.shape[-1]} dimensions.",
        kind="latent",
        frames=frames,
    )


SHOWN_DIMENSIONS = 64
HISTOGRAM_BINS = 50

OLD_CURVES = (
    ("old, current model", "before alignment", "before", "dot"),
    ("old, aligned", "aligned", "aligned", "solid"),
    ("old, previous model", "previous model", "previous", "dash"),
)
NEW_CURVES = (
    ("new, current model", "current model", "before", "dot"),
    ("new, previous model", "previous model", "previous", "dash"),
)


def heat_figure(walk: LatentWalk) -> Figure:
    """Draw how far each latent dimension has moved at each step, as a mean over old images (z_i - z_0)."""
    finite = finite_images(walk)
    latents = walk.old_trajectory[:, finite].astype(np.float64)
    count, _, dimension = latents.shape
    # With no image left there is nothing to average, and nothing is shown to move.
    moved = (latents - latents[:1]).mean(axis=1).T if finite.any() else np.zeros((dimension, count))
    furthest = np.abs(moved).max(axis=1)
    shown = np.sort(np.argsort(-furthest, kind="stable")[:SHOWN_DIMENSIONS])
    # Zero in the middle of the colours: the sign is the first thing one reads.
    bound = float(furthest.max()) or 1.0
    trace: Spec = {
        "type": "heatmap",
        "x": list(range(count)),
        "y": [str(index) for index in shown],
        "z": [floats(row, 5) for row in moved[shown]],
        "zmin": -bound,
        "zmax": bound,
        "colorscale": [[0, "@low"], [0.5, "@middle"], [1, "@high"]],
        "colorbar": {"title": {"text": "z<sub>i</sub> − z<sub>0</sub>"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "dimension %{y}, step %{x}: %{z:.3f}<extra></extra>",
    }
    most = int(furthest.argmax())
    which = "" if dimension <= len(shown) else f" Shown are the {len(shown)} of {dimension} dimensions that move most."
    if not finite.all():
        which += f" {int((~finite).sum())} of {len(finite)} images are left out: their latents overflowed."
    return Figure(
        [trace],
        layout(
            xaxis=axis("Langevin step", showgrid=False),
            yaxis=axis("latent dimension", type="category", autorange="reversed", showgrid=False),
        ),
        f"Heat map of the mean displacement of {len(shown)} latent dimensions over {count - 1} steps. "
        f"Dimension {most} moves most, by {moved[most, -1]:+.2f} at the last step; the median dimension moves by "
        f"{np.median(np.abs(moved[:, -1])):.2f} in absolute value.{which}",
        "Each row is a latent dimension, each column a step; the colour is the mean move of old images since step 0. "
        "In a row of one colour, the energy model pushes all images the same way." + which,
        kind="heat",
    )


def energy_figure(walk: LatentWalk) -> Figure:
    """Draw histograms of the energies of old images (before, aligned, previous model) and of new images."""
    energies = {name: values[np.isfinite(values)].astype(np.float64) for name, values in walk.energy.items()}
    energies = {name: values for name, values in energies.items() if len(values)}
    # A few far-off energies must not press all others into one bar; they are counted in the outermost ones.
    low = min((float(np.percentile(v, 0.5)) for v in energies.values()), default=0.0)
    high = max((float(np.percentile(v, 99.5)) for v in energies.values()), default=1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    data: list[Spec] = []
    said: list[str] = []
    for row, curves in enumerate((OLD_CURVES, NEW_CURVES), start=1):
        for name, label, colour, dash in curves:
            if name not in energies:
                continue
            counts, _ = np.histogram(np.clip(energies[name], edges[0], edges[-1]), bins=edges)
            said.append(f"{name} {np.median(energies[name]):.2f}")
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": label,
                    "x": floats((edges[:-1] + edges[1:]) / 2, 4),
                    "y": floats(100 * counts / len(energies[name])),
                    "yaxis": "y" if row == 1 else "y2",
                    "legend": "legend" if row == 1 else "legend2",
                    "line": {"shape": "hvh", "color": f"@{colour}", "dash": dash, "width": 2},
                    "fill": "tozeroy",
                    "fillcolor": f"@{colour}/0.14",
                    "hovertemplate": f"{plotly_text(name)}: %{{y:.1f}} % near %{{x:.2f}}<extra></extra>",
                }
            )
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "font": {"color": "@ink"}}
    return Figure(
        data,
        layout(
            xaxis=axis("energy", anchor="y2", zeroline=False),
            yaxis=axis("share (%)", domain=[0.6, 1.0], rangemode="tozero"),
            yaxis2=axis("share (%)", domain=[0.0, 0.4], rangemode="tozero"),
            legend={**legend, "y": 1.0, "title": {"text": "<b>old</b>", "font": {"size": 13}}},
            legend2={**legend, "y": 0.4, "title": {"text": "<b>new</b>", "font": {"size": 13}}},
        ),
        f"Histograms of energies; medians: {', '.join(said)}." if said else "No energies were stored.",
        "Low energy means that a latent looks like one of the previous model. Alignment lowers the energy; the aim is "
        "the curve of the previous model, and latents further left have gone past it. The outermost bins also count "
        "everything beyond them.",
        kind="energy",
    )


# Enough for means and histograms that look like those of all images, and a walk that fits into memory.
_HEAD = "model.head."
MEASURED_IMAGES = 2000


@dataclass(frozen=True, eq=False)
class RunLatents:
    """Latents of one run after its last finished task.

    Args:
        task: Number of the task, from 1.
        map: A few images of at most eight old classes, for the map.
        measured: Images of all old classes, for moves and energies.
        classes: How many old classes there are.
    """

    task: int
    map: LatentWalk
    measured: LatentWalk
    classes: int


def run_latents(run: Run) -> RunLatents:
    """Read the latents, heads and energy model of a run's last task, at least the second, and align the latents.

    Raises:
        ElignError: A file is damaged.
        FileNotFoundError: A file was removed.
    """
    number = len(run.tasks) - 1
    task = _TaskModel.load(run, number)
    labels = task.current.test_labels.numpy()
    old_classes = task.current.old_classes
    old, new = np.flatnonzero(labels < old_classes), np.flatnonzero(labels >= old_classes)
    # With more classes than colours, some are shown, evenly spaced in the order of arrival.
    shown = np.unique(np.linspace(0, old_classes - 1, min(old_classes, CLASS_COLOURS)).round())
    few = old[np.isin(labels[old], shown)]
    return RunLatents(
        task=number + 1,
        map=task.walk(_some(few, labels, OLD_IMAGES), _some(new, labels, NEW_IMAGES)),
        measured=task.walk(_some(old, labels, MEASURED_IMAGES), new[:0]),
        classes=old_classes,
    )


def run_map(group: RunGroup) -> Figure | None:
    """Draw the map of the first run's last task; None if the run has no such latents any more, or never had."""
    if group.tasks < 2:
        return None
    try:
        latents = run_latents(group.runs[0])
    except (ElignError, FileNotFoundError):
        return None
    return latent_figure(latents.map, embed(latents.map))


def _some(rows: NDArray[np.int64], labels: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = rows[balanced_subset(labels[rows], limit)]
    return chosen


@dataclass(frozen=True, eq=False)
class _TaskModel:
    """The latents of a task with what classifies and moves them."""

    current: TaskLatents
    previous: TaskLatents
    pairs: tuple[Tensor, Tensor]
    space: AlignTarget
    aligner: EnergyAligner
    class_names: tuple[str, ...]
    choices: int
    """How many classes an old image may be classified as."""

    @classmethod
    def load(cls, run: Run, number: int) -> _TaskModel:
        source = run.source
        current, previous = (TaskLatents.load(source.latents_file(task)) for task in (number, number - 1))
        file = run.folder.aligner_file(number, "eli")
        aligner = Aligner.load(file)
        if not isinstance(aligner, EnergyAligner):
            raise DamagedRunError(f"{file} holds a {type(aligner).__name__}, not an energy aligner")
        config = run.metadata["config"]["aligner"]
        head, previous_head = (_head(source, task) for task in (number, number - 1))
        classes = {"old_classes": current.old_classes, "classes": current.classes}
        space = AlignTarget(config["space"], head, previous_head, **classes)
        names = tuple(str(name) for name in run.metadata["classes"])
        choices = current.old_classes if benchmark_of(run.metadata).knows_tasks else current.classes
        return cls(current, previous, _pairs(run, number, current), space, aligner, names, choices)

    def walk(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> LatentWalk:
        """Let the old images in these rows of the test images descend the energy."""
        labels = self.current.test_labels
        rows = self.space.rows(self.current.test[torch.from_numpy(old)])
        # Old test images come first after every task, so their rows are those of the task before.
        target = self.space.previous(self.previous.test[torch.from_numpy(old)])
        start = self.space.values(rows)
        with torch.no_grad():
            path = self.aligner.trajectory(start, generator=torch.Generator().manual_seed(0))
            logits = (self.space.logits(self.space.replaced(rows, step))[:, : self.choices] for step in path)
            right = [each.argmax(1) == labels[old] for each in logits]
            return LatentWalk(
                old_labels=labels[old].numpy(),
                new_labels=labels[new].numpy(),
                old_previous=target.numpy(),
                old_trajectory=path.numpy(),
                new_current=self.space.values(self.space.rows(self.current.test[torch.from_numpy(new)])).numpy(),
                correct=torch.stack(right).numpy(),
                energy=self._energies(target, start, path[-1]),
                class_names=self.class_names,
            )

    def _energies(self, target: Tensor, start: Tensor, aligned: Tensor) -> Mapping[str, NDArray[np.float32]]:
        """Return energies of old test images, and of the pairs of the new task."""
        assert self.aligner.energy is not None  # noqa: S101  (it was loaded fitted)
        before, now = (tensor[:MEASURED_IMAGES] for tensor in self.pairs)
        values = {
            "old, previous model": target,
            "old, current model": start,
            "old, aligned": aligned,
            "new, previous model": self.space.previous(before),
            "new, current model": self.space.values(self.space.rows(now)),
        }
        return {name: self.aligner.energy(z).numpy() for name, z in values.items()}


def _pairs(run: Run, number: int, current: TaskLatents) -> tuple[Tensor, Tensor]:
    """Read the pairs of the new task; an evaluation with another augmentation has its own."""
    own = run.folder.pairs_file(number)
    if not own.is_file():
        return current.pairs_previous, current.pairs_current
    tensors, _ = read_tensors(own, expect=["previous", "current"])
    return tensors["previous"], tensors["current"]


def _head(folder: RunDir, number: int) -> nn.Module:
    """Make the head after a task from its weights; the backbone and the data are not needed."""
    state, _, _ = folder.load_model(number)
    weights = {name.removeprefix(_HEAD): tensor for name, tensor in state.items() if name.startswith(_HEAD)}
    names = set(weights)
    if names == {"weight", "bias"}:
        classes, dim = weights["weight"].shape
        head: nn.Module = LinearHead(dim, classes)
    elif names == {"weight", "sigma"}:
        classes, dim = weights["weight"].shape
        head = CosineHead(dim, classes)
    elif names == {"1.weight", "1.bias"}:
        classes, dim = weights["1.weight"].shape
        head = nn.Sequential(nn.ReLU(), nn.Linear(dim, classes))
    elif names == {"old", "new", "sigma"}:
        head = SplitCosineHead(weights["old"].shape[1], len(weights["old"]), len(weights["new"]))
    else:
        raise DamagedRunError(
            f"{folder.task(number)}/model.safetensors has an unknown head: {', '.join(sorted(names))}"
        )
    head.load_state_dict(weights)
    return head
