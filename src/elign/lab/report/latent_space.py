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
from elign.lab.models.classifier import CosineHead, LinearHead, SplitCosineHead
from elign.lab.report.figures import (
    CLASS_COLOURS,
    LEGEND_ABOVE,
    Figure,
    Frames,
    Spec,
    axis,
    class_colour,
    floats,
    layout,
    plotly_text,
    scatter,
)
from elign.lab.report.run_groups import Run
from elign.lab.runs.experiment import benchmark_of
from elign.lab.runs.run_dir import RunDir
from elign.lab.storage import DamagedRunError, read_tensors

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OLD_IMAGES = 150
NEW_IMAGES = 150
# Enough for means and histograms that look like those of all images, and a walk that fits into memory.
MEASURED_IMAGES = 2000
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
    """

    old_labels: IntArray
    new_labels: IntArray
    old_previous: NDArray[np.float32]
    old_trajectory: NDArray[np.float32]
    new_current: NDArray[np.float32]
    correct: NDArray[np.bool_]
    energy: Mapping[str, NDArray[np.float32]]
    class_names: tuple[str, ...]
    old_classes: int

    def finite(self) -> NDArray[np.bool_]:
        """Return (n,) which old images have finite latents throughout: steps that are too long can overflow."""
        walked = np.isfinite(self.old_trajectory).all(axis=(0, 2))
        return np.asarray(walked & np.isfinite(self.old_previous).all(axis=1))


def run_walk(run: Run) -> LatentWalk:
    """Read the latents, heads and energy model of a run's last task, at least the second, and align the latents.

    Raises:
        DamagedRunError: A file is damaged.
        FileNotFoundError: A file was removed.
    """
    number, source, metadata = len(run.tasks) - 1, run.source, run.metadata
    names = ("test", "test_labels", "pairs_previous", "pairs_current")
    latents, _ = read_tensors(source.task_file(number, "latents"), expect=names)
    before, _ = read_tensors(source.task_file(number - 1, "latents"), expect=["test"])
    aligner = Aligner.load(file := run.folder.aligner_file(number, "eli"))
    if not isinstance(aligner, EnergyAligner) or aligner.energy is None:
        raise DamagedRunError(f"{file} holds a {type(aligner).__name__}, not an energy aligner")
    head, previous_head = (_head(source, task) for task in (number, number - 1))
    old_classes, classes = sum(metadata["sizes"][:number]), sum(metadata["sizes"][: number + 1])
    moves_logits = metadata["config"]["aligner"]["space"] == "logits"
    pairs = {name: latents[f"pairs_{name}"] for name in ("previous", "current")}
    # An evaluation with another augmentation has its own pairs.
    if (own := run.folder.task_file(number, "pairs")).is_file():
        pairs, _ = read_tensors(own, expect=["previous", "current"])
    labels = latents["test_labels"].numpy()
    old, new = np.flatnonzero(labels < old_classes), np.flatnonzero(labels >= old_classes)
    few = old[np.isin(labels[old], _shown_classes(old_classes))]
    parts = (few[balanced_subset(labels[few], OLD_IMAGES)], old[balanced_subset(labels[old], MEASURED_IMAGES)])
    old = np.union1d(*parts)
    # How many classes an old image may be classified as.
    choices = old_classes if benchmark_of(metadata).knows_tasks else classes

    def moved(z: Tensor, of: nn.Module) -> Tensor:
        """Return what an aligner moves (see `AlignTarget`): latents, or the logits of the old classes."""
        return of(z)[:, :old_classes] if moves_logits else z

    with torch.no_grad():
        z = latents["test"][old]
        start = moved(z, head)
        path = aligner.trajectory(start, generator=torch.Generator().manual_seed(0))
        others = head(z)[:, old_classes:]
        logits = (torch.cat([step, others], dim=1) if moves_logits else head(step) for step in path)
        correct = torch.stack([each[:, :choices].argmax(1) == latents["test_labels"][old] for each in logits])
        # Old test images come first after every task, so their rows are those of the task before.
        aim = moved(before["test"][old], previous_head)
        energies = {
            "old, previous model": aim,
            "old, current model": start,
            "old, aligned": path[-1],
            "new, previous model": moved(pairs["previous"][:MEASURED_IMAGES], previous_head),
            "new, current model": moved(pairs["current"][:MEASURED_IMAGES], head),
        }
        return LatentWalk(
            old_labels=labels[old],
            new_labels=labels[new],
            old_previous=aim.numpy(),
            old_trajectory=path.numpy(),
            new_current=moved(latents["test"][new], head).numpy(),
            correct=correct.numpy(),
            energy={name: aligner.energy(each).numpy() for name, each in energies.items()},
            class_names=tuple(map(str, metadata["classes"])),
            old_classes=old_classes,
        )


def _head(folder: RunDir, number: int) -> nn.Module:
    """Make the head after a task from its weights; the backbone and the data are not needed."""
    state, prefix = folder.load_model(number)[0], "model.head."
    weights = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    match sorted(weights):
        case ["bias", "weight"]:
            head: nn.Module = LinearHead(*reversed(shapes["weight"]))
        case ["sigma", "weight"]:
            head = CosineHead(*reversed(shapes["weight"]))
        case ["1.bias", "1.weight"]:
            head = nn.Sequential(nn.ReLU(), nn.Linear(shapes["1.weight"][1], shapes["1.weight"][0]))
        case ["new", "old", "sigma"]:
            head = SplitCosineHead(shapes["old"][1], shapes["old"][0], shapes["new"][0])
        case names:
            raise DamagedRunError(f"{folder.task(number)}/model.safetensors has an unknown head: {', '.join(names)}")
    head.load_state_dict(weights)
    return head


def balanced_subset(labels: IntArray, limit: int) -> IntArray:
    """Return increasing rows of at most `limit` items: the first of each class, then the second of each, and so on."""
    turn = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    order = np.lexsort((labels, turn))
    return np.sort(order[:limit]).astype(np.int64)


def _shown_classes(old_classes: int) -> IntArray:
    """Return the old classes of the map: if there are more than colours, some, evenly spaced in order of arrival."""
    return shown_steps(old_classes - 1, min(old_classes, CLASS_COLOURS))


def shown_steps(last: int, count: int = STEPS) -> IntArray:
    """Return about `count` evenly spaced numbers of 0..last, both ends included."""
    return np.unique(np.linspace(0, last, count).round().astype(np.int64))


@dataclass(frozen=True)
class Embedding:
    """Positions in one common plane (n' old and m' new images, S steps).

    Args:
        old_index: (n',) rows of the walk's old images that are shown.
        steps: (S,) the Langevin steps that are shown, first and last included.
        previous: (n', 2) old images under the previous model.
        trajectory: (S, n', 2) old images under the current model at each shown step.
        new: (m', 2) new images under the current model.
    """

    old_index: IntArray
    steps: IntArray
    previous: FloatArray
    trajectory: FloatArray
    new: FloatArray

    def limits(self) -> list[list[float]]:
        """Return ranges of x and y that hold all points of all steps."""
        everything = np.concatenate([self.previous, self.trajectory.reshape(-1, 2), self.new])
        if not len(everything):
            return [[-1.0, 1.0], [-1.0, 1.0]]
        low, high = everything.min(axis=0), everything.max(axis=0)
        room = 0.05 * (high - low) + 1e-3
        ranges: list[list[float]] = np.stack([low - room, high + room], axis=1).tolist()
        return ranges


def embed(walk: LatentWalk, *, seed: int = 0) -> Embedding:
    """Place a class-balanced part of the latents in one plane; the same walk and seed give the same positions."""
    old = np.flatnonzero(walk.finite() & np.isin(walk.old_labels, _shown_classes(walk.old_classes)))
    old = old[balanced_subset(walk.old_labels[old], OLD_IMAGES)]
    new = balanced_subset(walk.new_labels, NEW_IMAGES)
    steps = shown_steps(len(walk.old_trajectory) - 1)
    trajectory = walk.old_trajectory[np.ix_(steps, old)]
    dimension = trajectory.shape[-1]
    rows = np.concatenate([walk.old_previous[old], trajectory.reshape(-1, dimension), walk.new_current[new]])
    image = np.concatenate([np.tile(np.arange(len(old)), 1 + len(steps)), len(old) + np.arange(len(new))])
    # Sums over several threads depend on their order: one thread makes two runs equal.
    with threadpool_limits(1):
        positions = _plane(rows.astype(np.float64), image, seed=seed)
    previous, moving, rest = np.split(positions, [len(old), len(old) * (1 + len(steps))])
    return Embedding(old, steps, previous, moving.reshape(len(steps), len(old), 2), rest)


def _plane(rows: FloatArray, image: IntArray, *, seed: int) -> FloatArray:
    """Return (k, 2) positions of (k, D) rows: t-SNE, or the principal plane if there are too few rows.

    An image at one step is the nearest neighbour of itself at the next step. Such pairs would tie each walk into a
    knot and hide its length, so rows of the same image, (k,), do not count as neighbours.
    """
    if not len(rows):
        return np.zeros((0, 2))
    centred = rows - rows.mean(axis=0)
    axes = PCA(min(COMPONENTS, *rows.shape), svd_solver="full").fit_transform(centred) if np.any(centred) else centred
    axes = np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1]))))
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


def latent_figure(walk: LatentWalk, embedding: Embedding) -> Figure:
    """Draw old latents coloured by class over their targets and the new task, with a slider for the steps."""
    labels, correct = walk.old_labels[embedding.old_index], walk.correct[:, embedding.old_index]
    names = dict(enumerate(walk.class_names))
    # The name of each class, or its number, and which points are of it.
    classes = [(names.get(label, str(label)), labels == label) for label in np.unique(labels)]
    planes, moved = embedding.trajectory, [inside for _, inside in classes]
    symbols = np.where(correct, "circle", "x")
    last, texts = len(walk.old_trajectory) - 1, []
    for step in embedding.steps:
        share = f"{100 * correct[step].mean():.0f} %" if len(labels) else "none"
        texts.append(f"step {step} of {last}, {share} of the points shown are classified correctly")
    frames = Frames(
        traces=list(range(1 + len(classes), 1 + 2 * len(classes))),
        x=[[floats(plane[inside, 0], 2) for inside in moved] for plane in planes],
        y=[[floats(plane[inside, 1], 2) for inside in moved] for plane in planes],
        symbols=[[symbols[step, inside].tolist() for inside in moved] for step in embedding.steps],
        texts=texts,
    )
    targets, points, entries = [], [], []
    for position, (name, inside) in enumerate(classes):
        colour, own = class_colour(position), {"name": plotly_text(name), "legendgroup": f"class {position}"}
        ring = {"symbol": "circle-open", "color": colour, "size": 9, "opacity": 0.32, "line": {"width": 1.2}}
        both = {"name": f"{own['name']}, previous model", "legendgroup": "targets"}
        targets.append(_points(embedding.previous[inside], marker=ring, showlegend=False, **both))
        symbol = frames.symbols[0][position]
        marker = {"symbol": symbol, "color": colour, "size": 8, "line": {"width": 0.6, "color": "@page"}}
        points.append(_points(planes[0][inside], marker=marker, showlegend=False, **own))
        # The legend would otherwise show the symbol of the class's first point, which may be a cross.
        entries.append(_legend_entry("circle", color=colour) | own)
    entries.append(_legend_entry("x") | {"name": "classified wrongly"})
    ring = _legend_entry("circle-open", line={"width": 1.2})
    entries.append(ring | {"name": "previous model", "legendgroup": "targets"})
    new = _points(embedding.new, name="new task", marker={"color": "@new", "size": 4, "opacity": 0.55})
    # t-SNE's axes have no unit, so none is shown; the ranges are fixed so that nothing but the points moves.
    bare: Spec = {"showticklabels": False, "zeroline": False, "showgrid": False, "fixedrange": False, "ticks": ""}
    bare |= {"showline": True, "mirror": True}
    x_range, y_range = embedding.limits()
    return Figure(
        [new, *targets, *points, *entries],
        # The page replaces the drag mode on touch screens, where dragging must scroll.
        layout(xaxis=axis(range=x_range, **bare), yaxis=axis(range=y_range, **bare), dragmode="zoom"),
        f"Scatter plot of {len(labels)} old and {len(embedding.new)} new latents in a common t-SNE plane. "
        f"First: {frames.texts[0]}. Last: {frames.texts[-1]}.",
        "The slider moves the latents of old images down the energy. Colours are classes; crosses are images that the "
        "head classifies wrongly; open circles are the same images under the previous model; grey dots are images of "
        "the new task. All steps share one t-SNE map. Near points are similar, but distances across the map mean "
        f"little: the head decides in all {walk.old_previous.shape[-1]} dimensions.",
        kind="latent",
        frames=frames,
    )


def _points(positions: FloatArray, **more: Any) -> Spec:
    x, y = (floats(each, 2) for each in positions.T)
    return scatter(x, y, hovertemplate="%{fullData.name}<extra></extra>", **more)


def _legend_entry(symbol: str, **marker: object) -> Spec:
    """Return a legend entry for a symbol that several traces use."""
    return scatter([None], [None], marker={"symbol": symbol, "color": "@soft", "size": 8, **marker})


SHOWN_DIMENSIONS = 64
HISTOGRAM_BINS = 50

# Of each histogram: energies, name, colour and dash; the second number is that of the axes.
CURVES = (
    ("old, current model", "", "before alignment", "before", "dot"),
    ("old, aligned", "", "aligned", "aligned", "solid"),
    ("old, previous model", "", "previous model", "previous", "dash"),
    ("new, current model", "2", "current model", "before", "dot"),
    ("new, previous model", "2", "previous model", "previous", "dash"),
)


def heat_figure(walk: LatentWalk) -> Figure:
    """Draw how far each latent dimension has moved at each step, as a mean over old images (z_i - z_0)."""
    finite = walk.finite()
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
    for name, number, label, colour, dash in CURVES:
        if name not in energies:
            continue
        counts, _ = np.histogram(np.clip(energies[name], edges[0], edges[-1]), bins=edges)
        said.append(f"{name} {np.median(energies[name]):.2f}")
        trace = scatter(
            floats((edges[:-1] + edges[1:]) / 2, 4),
            floats(100 * counts / len(energies[name])),
            "lines",
            name=label,
            line={"shape": "hvh", "color": f"@{colour}", "dash": dash, "width": 2},
            fill="tozeroy",
            fillcolor=f"@{colour}/0.14",
            hovertemplate=f"{plotly_text(name)}: %{{y:.1f}} % near %{{x:.2f}}<extra></extra>",
        )
        data.append(trace | {"yaxis": f"y{number}", "legend": f"legend{number}"})
    return Figure(
        data,
        layout(
            xaxis=axis("energy", anchor="y2", zeroline=False),
            yaxis=axis("share (%)", domain=[0.6, 1.0], rangemode="tozero"),
            yaxis2=axis("share (%)", domain=[0.0, 0.4], rangemode="tozero"),
            legend={**LEGEND_ABOVE, "y": 1.0, "title": {"text": "<b>old</b>", "font": {"size": 13}}},
            legend2={**LEGEND_ABOVE, "y": 0.4, "title": {"text": "<b>new</b>", "font": {"size": 13}}},
        ),
        f"Histograms of energies; medians: {', '.join(said)}." if said else "No energies were stored.",
        "Low energy means that a latent looks like one of the previous model. Alignment lowers the energy; the aim is "
        "the curve of the previous model, and latents further left have gone past it. The outermost bins also count "
        "everything beyond them.",
        kind="energy",
    )
