"""The paper's comparisons of learners with and without ELI, as grids of base runs."""

from __future__ import annotations

from elign.lab.experiments.published import published_aligner
from elign.lab.report import paper
from elign.lab.reproduce.grid import Line, grid_experiment, readings_over_seeds
from elign.lab.reproduce.jobs import Experiment
from elign.lab.reproduce.request import LEARNERS, PROTOCOLS, Request

_PRINTED = ("cifar100", "imagenet100")
_HALF = tuple(name for name in PROTOCOLS if name.startswith("half-"))


def table1(request: Request) -> Experiment:
    """Three learners on CIFAR-100 and ImageNet-100, half of the classes first or equal tasks."""
    lines = []
    for learner in request.learners or LEARNERS:
        for data in request.data_sets(*_PRINTED):
            shown = printed_data(data)
            for protocol in request.splits(data, PROTOCOLS):
                readings = readings_over_seeds(
                    request, learner, data, protocol, published_aligner(learner, data, protocol)
                )
                labels = (learner, data, protocol)
                lines.append(Line(labels, readings, paper.table1(learner, shown, protocol), shown))
    return grid_experiment(
        "table1", "Table 1: learners with and without ELI", ("learner", "data", "protocol"), lines, request
    )


def imagenet1k(request: Request) -> Experiment:
    """Accuracy after each task on ImageNet-1k."""
    lines = []
    for learner in request.learners or LEARNERS:
        for data in request.data_sets("imagenet1k"):
            for protocol in request.splits(data, _HALF):
                readings = readings_over_seeds(request, learner, data, protocol)
                tasks = 1 + int(protocol.removeprefix("half-"))
                for task in (*range(1, tasks + 1), None):
                    name = "average" if task is None else str(task)
                    printed = paper.imagenet1k(learner) if task is None else paper.NOTHING
                    lines.append(Line((learner, data, protocol, name), readings, printed, "imagenet1k", task))
    return grid_experiment(
        "imagenet1k",
        "ImageNet-1k: accuracy after each task",
        ("learner", "data", "protocol", "after task"),
        lines,
        request,
        notes=("the paper prints its curves as pictures; its average gain of a learner is over all three protocols",),
    )


def logits(request: Request) -> Experiment:
    """Table 6: aligning the logits of old classes instead of latents."""
    lines = []
    for learner in request.learners or LEARNERS:
        for data in request.data_sets("cifar100"):
            shown = printed_data(data)
            for protocol in request.splits(data, _HALF):
                for name, aligner, printed in (
                    ("logits", ("aligner=logits",), paper.logit_aligner),
                    ("latents", (), paper.table1),
                ):
                    readings = readings_over_seeds(request, learner, data, protocol, aligner)
                    labels = (learner, data, protocol, name)
                    lines.append(Line(labels, readings, printed(learner, shown, protocol), shown))
    return grid_experiment(
        "logits",
        "Table 6: an aligner of logits, and one of latents",
        ("learner", "data", "protocol", "aligned are"),
        lines,
        request,
        varied=("aligner.space",),
        notes=("the authors' code of the logit aligner is not public: here it moves the old classes' logits",),
    )


def implicit(request: Request) -> Experiment:
    """ELI in place of AANet's explicit regularisation of latents."""
    lines = []
    for data in request.data_sets("imagenet100"):
        shown = printed_data(data, otherwise="imagenet100")
        for protocol in request.splits(data, _HALF):
            for learner, printed in (
                ("aanet", paper.table1("aanet", shown, protocol)),
                ("aanet-implicit", paper.implicit(protocol) if shown == "imagenet100" else paper.NOTHING),
            ):
                readings = readings_over_seeds(
                    request, learner, data, protocol, published_aligner(learner, data, protocol)
                )
                lines.append(Line((learner, data, protocol), readings, printed, shown))
    return grid_experiment(
        "implicit",
        "AANet with and without its explicit regulariser, with and without ELI",
        ("learner", "data", "protocol"),
        lines,
        request,
        notes=("aanet-implicit is AANet without the loss that holds latents in place; its printed bars are a picture",),
    )


def printed_data(data: str, *, otherwise: str = "cifar100") -> str:
    """The data set whose printed number stands beside a run: its own, or the one that it is a small stand-in for."""
    return data if data in _PRINTED else otherwise
