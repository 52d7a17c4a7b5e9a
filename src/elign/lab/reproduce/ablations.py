"""The paper's ablations of the aligner: other settings, read off the same base runs."""

from __future__ import annotations

import re

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.report import paper
from elign.lab.reproduce.grid import Line, grid_experiment, readings_over_seeds
from elign.lab.reproduce.jobs import Experiment
from elign.lab.reproduce.request import PROTOCOLS, Request
from elign.lab.reproduce.tables import printed_data

_HALF = tuple(name for name in PROTOCOLS if name.startswith("half-"))
_KEYS = {
    "langevin": ("aligner.steps", "Table 3: Langevin steps", "steps"),
    "iterations": ("aligner.iterations", "Table 4: training iterations of the energy model", "iterations"),
    "architecture": ("aligner.hidden", "Table 5: layers of the energy model", "energy model"),
    "mixup": ("aligner.mixup", "Supplement: mixup of the energy model's images", "mixup"),
}


def ablation(name: str, request: Request) -> Experiment:
    """One of the ablations of the aligner, by its name.

    Raises:
        ConfigError: The user sets what the experiment varies.
    """
    key, title, heading = _KEYS[name]
    if request.value(key) is not None:
        raise ConfigError(f"{name} varies {key} itself: leave it out, or use 'elign evaluate'.")
    lines = []
    for learner in request.learners or ("icarl",):
        for data in request.data_sets("cifar100"):
            shown = printed_data(data)
            for protocol in request.splits(data, _HALF):
                for value in paper.ablation_values(name):
                    readings = readings_over_seeds(request, learner, data, protocol, _setting(key, value))
                    printed = paper.ablation(name, value, learner=learner, data=shown, protocol=protocol)
                    lines.append(Line((learner, data, protocol, value.replace(" ", "")), readings, printed, shown))
    headings = ("learner", "data", "protocol", heading)
    return grid_experiment(name, title, headings, lines, request, varied=(key,))


def _setting(key: str, value: str) -> tuple[str, ...]:
    """A printed setting as one of the bench's.

    Example:
        >>> _setting("aligner.hidden", "i - 64 - 64 - o"), _setting("aligner.mixup", "alpha=0.1")
        (('aligner.hidden=[64,64]',), ('aligner.mixup=0.1',))
    """
    if key == "aligner.hidden":
        return (f"{key}=[{','.join(re.findall(r'[0-9]+', value))}]",)
    if key == "aligner.mixup":
        return (f"{key}={'null' if value == 'none' else value.removeprefix('alpha=')}",)
    return (f"{key}={value}",)
