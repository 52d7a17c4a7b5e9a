"""Files of every class that somebody tampered with, digest included: each is refused, quickly and in little memory."""

from __future__ import annotations

import json
import time
import warnings

import pytest
import torch
from tests.aligning import learned
from tests.fuzzing import bounded, signed
from torch import nn

import elign
from elign.utils import fitted
from elign.utils.fitted import FittedModule, read_safetensors

DIM, CLASSES = 4, 4
SECONDS, MEGABYTES = 2.0, 300
PLAIN_ALIGNERS = (elign.Identity, elign.RandomShift, elign.Ridge, elign.LocalShift, elign.LDC, elign.GLS, elign.SLDC)
PLAIN_ALIGNERS += (elign.DPCR, elign.HopfieldShift)


def latents(rows=80):
    labels = torch.arange(rows) % CLASSES
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.eye(DIM)[labels] + torch.randn(rows, DIM, generator=generator)
    return z, z @ torch.diag(torch.linspace(0.5, 2, DIM)) + 1, labels


def make_all():
    """One object of every registered class that can be saved, some in several forms."""
    z_prev, z, labels = latents()
    torch.manual_seed(0)
    head = nn.Linear(DIM, CLASSES)
    energy = elign.EnergyAligner(hidden=(3,), iterations=2, steps=2).fit_latents(z_prev, z)
    shift = elign.MeanShift().fit_latents(z_prev, z)
    means = elign.NearestMean().fit(z=z, labels=labels)
    old, new = labels < 2, labels >= 2
    statistics = elign.ClassStatistics().update(z_prev[old], labels[old])

    def repair(**known):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return elign.Repair(force=True).fit_latents(z_prev[new], z[new], labels[new], head=head, **known)

    return {
        "EnergyAligner": energy,
        "MeanShift": shift,
        **{kind.__name__: kind().fit_latents(z_prev, z) for kind in PLAIN_ALIGNERS},
        "FisherShift": elign.FisherShift(head=head).fit_latents(z_prev, z),
        "MLPMap": elign.MLPMap(width=1, epochs=1).fit_latents(z_prev, z),
        "DualE": elign.DualE(experts=2, rank=0.5).fit_latents(z_prev, z),
        "ADC": learned(elign.ADC(), z_prev, z),
        "Always": elign.Always(),
        "ByPrediction": elign.ByPrediction(old_classes=2),
        "ByEnergy": elign.ByEnergy().fit(energy, z),
        "ByProbe": elign.ByProbe().fit(z[old], z[new]),
        "FixedStrength": elign.FixedStrength().fit(shift, head, z, labels, old_classes=2),
        "NearestMean": means,
        "Gaussian": elign.Gaussian().fit(z=z, labels=labels),
        "Gaussian shared": elign.Gaussian(shared=1).fit(z=z, labels=labels),
        "LinearHead": elign.LinearHead(steps=5).fit(z=z, labels=labels),
        "RidgeHead": elign.RidgeHead().fit(z=z, labels=labels),
        "RandomFeatures": elign.RandomFeatures(width=5, penalty=1.0).fit(z=z, labels=labels),
        "FeCAM": elign.FeCAM().fit(z=z, labels=labels),
        "BiC": elign.BiC().fit(z, labels, head=head, old_classes=2),
        "IL2M": elign.IL2M().fit(z, labels, head=head, old_classes=2, birth={0: (0.9, 0.9), 1: (0.8, 0.9)}),
        "HeadLogits": elign.HeadLogits(),
        "WeightAligned": elign.WeightAligned().fit(head=head, old_classes=2),
        "Aligned": elign.Aligned(shift, means),
        "Voting": elign.Voting([elign.HeadLogits(), means], task_boundaries=2).fit(z=z, labels=labels, head=head),
        "ClassStatistics": statistics,
        "ClassStatistics low-rank": elign.ClassStatistics(covariance="low-rank", rank=2).update(z, labels),
        "ClassStatistics diagonal": elign.ClassStatistics(covariance="diagonal").update(z, labels),
        "ClassStatistics none": elign.ClassStatistics(covariance="none").update(z, labels),
        "Repair": repair(statistics=statistics),
        "Repair exemplars": repair(exemplars=(z[old], labels[old])),
        "Repair weights": repair(),
    }


MADE = make_all()
NAMES = list(MADE)
WHOLE = {}
"""What the files of objects hold; a file that is saved is flushed to the disk, which takes longer than all else."""
FLOATS = [
    (name, key)
    for name, made in MADE.items()
    for key, tensor in made.state_dict().items()
    if tensor.is_floating_point() and tensor.numel()
]
TENSORS = [(name, key) for name, made in MADE.items() for key in made.state_dict()]


@pytest.fixture
def tampered(tmp_path):
    """Writes the file of an object with other options or tensors, and a digest that fits; a change of None removes."""

    def write(made, *, options=None, tensors=None, **metadata):
        path = tmp_path / "whole"
        if made not in WHOLE:
            WHOLE[made] = read_safetensors(made.save(path))
        described, held = (dict(each) for each in WHOLE[made])
        config = json.loads(described["config"]) | (options or {})
        described |= {"config": json.dumps(config), **metadata}
        held |= {key: tensor.contiguous() for key, tensor in (tensors or {}).items() if tensor is not None}
        held = {key: tensor for key, tensor in held.items() if (tensors or {}).get(key, tensor) is not None}
        return signed(path, described, held)

    return write


def refused(path):
    """Fails unless a file is refused by name, in bounded time and memory."""
    start = time.process_time()
    with bounded(megabytes=MEGABYTES), pytest.raises(elign.FileFormatError, match=path.name) as caught:
        FittedModule.load(path)
    assert time.process_time() - start < SECONDS
    assert len(str(caught.value)) < 6000


def test_every_registered_class_is_here():
    registered = {name: cls.__module__ for name, cls in fitted._registry.items()}
    ours = {name for name, module in registered.items() if module.startswith("elign.") and ".lab." not in module}
    assert {type(made).__name__ for made in MADE.values()} | {"ByMask"} == ours


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_only_written_again_is_read(tampered, name):
    made = MADE[name]
    loaded = FittedModule.load(tampered(made))
    assert all(torch.equal(loaded.state_dict()[key], tensor) for key, tensor in made.state_dict().items())


@pytest.mark.parametrize(("name", "key"), FLOATS)
def test_weights_that_are_no_numbers_are_refused(tampered, name, key):
    # No latent, or all of them, may be below the threshold of energies.
    for number in (torch.nan,) if name == "ByEnergy" else (torch.nan, torch.inf, -torch.inf):
        tensor = MADE[name].state_dict()[key].clone()
        tensor.view(-1)[-1] = number
        refused(tampered(MADE[name], tensors={key: tensor}))


def has_siblings(name, key):
    """Whether there are other numbers beside these: alone, they decide on the type of the object."""
    state, folder = MADE[name].state_dict(), key.rpartition(".")[0]
    return sum(tensor.is_floating_point() and k.rpartition(".")[0] == folder for k, tensor in state.items()) > 1


@pytest.mark.parametrize(("name", "key"), [each for each in FLOATS if has_siblings(*each) and "energy" not in each[1]])
def test_numbers_that_are_infinite_in_the_type_of_the_others_are_refused(tampered, name, key):
    tensor = MADE[name].state_dict()[key]
    refused(tampered(MADE[name], tensors={key: torch.full_like(tensor, 1e200, dtype=torch.float64)}))


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_tensors_of_another_kind_are_refused(tampered, name, key):
    tensor = MADE[name].state_dict()[key]
    for dtype in {torch.float32, torch.int64, torch.bool, torch.complex64} - {tensor.dtype}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused(tampered(MADE[name], tensors={key: tensor.to(dtype)}))


@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_wrong_shapes_and_missing_tensors_are_refused(tampered, name, key):
    made, tensor = MADE[name], MADE[name].state_dict()[key]
    missing = key not in ("is_forward",) and not key.endswith(".is_forward")  # files of version 0.1 do not have it
    if missing:
        refused(tampered(made, tensors={key: None}))
    wrong = [tensor.unsqueeze(0), torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]])]
    for other in wrong:
        if other.shape != tensor.shape:
            refused(tampered(made, tensors={key: other}))
    for shape in ((0,), (0, 3), (10**9, 0), (0, 2**40)):
        if shape != tensor.shape:
            refused(tampered(made, tensors={key: torch.zeros(shape, dtype=tensor.dtype)}))


@pytest.mark.parametrize("name", NAMES)
def test_extra_tensors_are_refused(tampered, name):
    refused(tampered(MADE[name], tensors={"more": torch.zeros(2)}))
    refused(tampered(MADE[name], tensors={"estimators.7.means": torch.zeros(2, 2)}))


@pytest.mark.parametrize("name", [name for name, made in MADE.items() if int(made.latent_dim)])
def test_another_latent_dimension_is_refused(tampered, name):
    # No tensor of these depends on the dimension.
    free = name in ("Identity", "ByEnergy", "FixedStrength", "WeightAligned", "BiC", "IL2M")
    for dim in (0, -1, -(2**40), 2**20 + 1, 2**40, 2**62, *(() if free else (3, 30_000))):
        refused(tampered(MADE[name], tensors={"latent_dim": torch.tensor(dim)}))


OPTIONS = {
    "ADC": {"images": [0, "1"], "steps": [10**9], "step": ["1", float("inf")], "norm": ["pixel", ["batch"]]},
    "DualE": {"experts": [0, 10**9], "rank": [0, 2, "1"], "temperature": [0.0], "keep": [-1], "statistics": ["x", {}]},
    "ByPrediction": {
        "old_classes": [10**8, [0, 10**8], [-1], [], "10", 10**400],
        "logits": ["print"],
        "soft": ["no", 1],
    },
    "ByProbe": {"soft": ["no"], "penalty": ["1", float("nan"), -1]},
    "ByEnergy": {"quantile": ["0.5", 2]},
    "EnergyAligner": {
        "hidden": [[2] * 200_000, [10**9], [2**20] * 64, "33", 3],
        "steps": [10**9, -1, "3"],
        "iterations": [10**9],
        "step_size": ["0.1", float("inf"), 10**400],
        "noise": [float("nan")],
        "half_step": ["yes"],
        "seed": [2**63, "1"],
    },
    "RandomShift": {"norm": ["1", float("nan")]},
    "Ridge": {"penalty": ["strong", 0]},
    "LocalShift": {"bandwidth": ["1"], "anchors": [0]},
    "FixedStrength": {"shares": ["01", [10**400], 1], "tolerance": ["1"]},
    "Gaussian": {"shared": ["all"], "shrinkage": [2], "normalize": ["no"]},
    "NearestMean": {"normalize": ["no"], "normalise": [True]},
    "LinearHead": {"steps": [10**9], "samples_per_class": [10**9], "weight_decay": ["1"]},
    "Voting": {
        "steps": [10**9, "4"],
        "task_boundaries": [10**9, [1, 10**9], [2, 1], list(range(1, 100_000)), "2"],
        "standard_errors": ["1", float("nan")],
        "estimators": [
            [],
            "both",
            [{"class": "HeadLogits", "config": {}}] * 9000,
            [{"class": "MeanShift", "config": {}}],
            [{"class": "HeadLogits", "config": "x"}],
            [{"class": "Nothing", "config": {}}],
            [{"class": ["HeadLogits"], "config": {}}],
            [{"class": "NearestMean", "config": {"normalize": "no"}}],
        ],
    },
    "Aligned": {"aligner": [{"class": "EnergyAligner", "config": {"hidden": [10**9]}}, "MeanShift"]},
    "ClassStatistics": {"rank": [10**9, "2"], "covariance": ["some", 3, "diagonal", ["full"]]},
    "Repair": {
        "head": [3],
        "prior": ["many", float("nan")],
        "residual": [-1],
        "force": ["yes"],
        "seed": [-1],
        "aligner": ["Ridge", {"class": "EnergyAligner", "config": {"steps": 10**9}}],
        "classifier": ["Gaussian", {"class": "MeanShift", "config": {}}, {"class": "NearestMean", "config": {}}],
    },
}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, option, value) for name, held in OPTIONS.items() for option, values in held.items() for value in values],
    ids=lambda value: str(value)[:60],
)
def test_options_out_of_range_are_refused(tampered, name, option, value):
    refused(tampered(MADE[name], options={option: value}))


@pytest.mark.parametrize("config", ["[]", "3", "null", '"x"', "{", "", '{"x": 1}', "[" * 10_000, '{"a":' * 100_000])
@pytest.mark.parametrize("name", ["Ridge", "Gaussian", "Repair", "HeadLogits"])
def test_options_that_are_none_are_refused(tampered, name, config):
    refused(tampered(MADE[name], config=config))


AROUND = {
    "Voting": ('{"task_boundaries": 2, "estimators": [', "]}"),
    "Aligned": ('{"aligner": {"class": "MeanShift", "config": {}}, "classifier": ', "}"),
    "Repair": ('{"classifier": ', "}"),
}


@pytest.mark.parametrize("levels", [50, 300, 1000, 10_000])
@pytest.mark.parametrize("names", [["Voting"], ["Aligned"], ["Repair"], ["Repair", "Aligned"]], ids=" of ".join)
def test_deeply_nested_parts_are_refused(tampered, names, levels):
    opening = "".join(f'{{"class": "{name}", "config": {AROUND[name][0]}' for name in names)
    closing = "".join(f"{AROUND[name][1]}}}" for name in reversed(names))
    part = opening * levels + '{"class": "HeadLogits", "config": {}}' + closing * levels
    refused(tampered(MADE[names[0]], config=part.join(AROUND[names[0]])))


def test_objects_that_cannot_be_saved_do_not_come_out_of_files(tampered):
    for config in ({"mask": [True]}, {"mask": "x"}, {"mask": None}, {}):
        refused(tampered(elign.Always(), config=json.dumps(config), **{"class": "ByMask"}))
    for name in ("Aligner", "Gate", "LatentClassifier", "FittedModule", "_Shift", "EnergyModel", "Module", "?", ""):
        refused(tampered(elign.Always(), **{"class": name}))


VALUES = {
    ("ADC", "classes"): [[0, 1, 2**40], [1, 0, 2], [0, 1, 1], [-1, 0, 1]],
    ("ADC", "kept"): [[1, 1, -1]],
    ("ClassStatistics", "classes"): [[0, 2**40], [1, 0], [1, 1], [-1, 0]],
    ("ClassStatistics", "counts"): [[3, -3], [0, 3], [3, 2**62]],
    ("ClassStatistics diagonal", "diagonals"): [-torch.ones(CLASSES, DIM)],
    ("ClassStatistics low-rank", "diagonals"): [-torch.ones(CLASSES, DIM)],
    ("Repair", "mode_number"): [3, -1, 2**40],
    ("Repair", "temperature"): [0.0, -1.0, torch.nan],
    ("Repair", "head_share"): [1.5],
    ("Repair", "classifier.latent_dim"): [0],
    ("Repair", "classifier.counts"): [[1, 1, 1, -1]],
    ("Repair exemplars", "temperature"): [0.0],
    ("Gaussian", "counts"): [[1, 1, 1, -1]],
    ("Gaussian", "own_shares"): [[0.1, 0.1, 0.1, 2.0]],
    ("Gaussian", "chosen_shrinkage"): [-0.1],
    ("Gaussian", "scale"): [0.0],
    ("Gaussian", "whitening"): [torch.ones(3, DIM, DIM)],
    ("NearestMean", "counts"): [[1, 1, 1, -1]],
    ("NearestMean", "fitted_rows"): [[1, 1, 1, -1]],
    ("LinearHead", "counts"): [[1, 1, 1, -1]],
    ("LocalShift", "width"): [0.0, -1.0],
    ("FixedStrength", "strength"): [3.0],
    ("Voting", "weights"): [[0.0, 0.0], [2.0, -1.0]],
}


@pytest.mark.parametrize(("name", "key"), VALUES)
def test_numbers_that_make_no_sense_are_refused(tampered, name, key):
    for value in VALUES[name, key]:
        refused(tampered(MADE[name], tensors={key: torch.as_tensor(value)}))


def test_parts_that_do_not_fit_each_other_are_refused(tampered):
    z = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    other = elign.NearestMean().fit(z=z, labels=torch.arange(20) % CLASSES).state_dict()
    for name, prefix in (("Aligned", "classifier."), ("Voting", "estimators.1.")):
        refused(tampered(MADE[name], tensors={f"{prefix}{key}": tensor for key, tensor in other.items()}))
    gaussian = elign.Gaussian().fit(z=z, labels=torch.arange(20) % CLASSES).state_dict()
    refused(tampered(MADE["Repair"], tensors={f"classifier.{key}": tensor for key, tensor in gaussian.items()}))


@pytest.mark.parametrize("name", [name for name, made in MADE.items() if made.rows_of])
def test_files_of_no_class_at_all_are_refused(tampered, name):
    made = MADE[name]
    empty = {key: tensor[:0] for key, tensor in made.state_dict().items() if tensor.ndim and len(tensor) == made.rows}
    refused(tampered(made, tensors=empty))
