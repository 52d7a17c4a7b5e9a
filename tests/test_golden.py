"""Files of version 0.1 load with today's classes and give what they gave; and the same fits give the same again.

How the files under `golden` were made is in `golden/made_by.txt`, in the API of version 0.1.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import nn

import elign
from elign import Aligner, FittedModule, Gate, LatentClassifier
from elign.classifiers.bias import best_offset, best_offsets
from elign.utils.fitted import read_safetensors

GOLDEN = Path(__file__).parent / "golden"
SAVED = {path.stem: path for path in sorted((GOLDEN / "saved").glob("*.safetensors"))}
TENSORS = safetensors.torch.load_file(GOLDEN / "outputs.safetensors")
OBJECTS = json.loads((GOLDEN / "outputs.json").read_text(encoding="utf-8"))["objects"]
CALLS = json.loads((GOLDEN / "outputs.json").read_text(encoding="utf-8"))["calls"]
RENAMED = {"Blend": "Voting", "Discriminant": "Gaussian", "Dose": "FixedStrength", "HeadScores": "HeadLogits"}
RENAMED |= {"Prototypes": "NearestMean"}
BASES = {"Aligner": Aligner, "Gate": Gate, "Readout": LatentClassifier}
OLD, TASKS, DIM, HEAD = 3, [2, 3], 6, "2"
TOLERANCE = 1e-5  # relative to the largest number: rounding, where sums are in another order


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def model(name):
    made = nn.Sequential(nn.Linear(8, DIM), nn.Tanh(), nn.Linear(DIM, 5)).eval()
    prefix = f"input.{name}."
    made.load_state_dict({key.removeprefix(prefix): t for key, t in TENSORS.items() if key.startswith(prefix)})
    return made


@pytest.fixture
def given():
    """The inputs by their names; the models, their head and what reads their latents."""
    plain = {key.removeprefix("input."): t.clone() for key, t in TENSORS.items() if key.count(".") == 1}
    made = SimpleNamespace(**{key: t for key, t in plain.items() if f"input.{key}" in TENSORS})
    made.before, made.after = model("before"), model("after")
    made.head = made.after[2]
    made.read_before, made.read_after = elign.Latents(made.before, HEAD), elign.Latents(made.after, HEAD)
    made.kept_old = made.z_kept[made.labels_kept < OLD]
    made.aligner, made.ridge = load("EnergyAligner"), load("Ridge")
    with torch.no_grad():
        yield made


def load(name):
    return FittedModule.load(SAVED[name])


def same(found, name):
    """Whether this is the stored tensor: exactly, if there is nothing to round, else relative to its largest number."""
    expected = TENSORS[name]
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
    if not expected.is_floating_point():
        assert torch.equal(found, expected), name
        return
    # Classes without a score.
    assert torch.equal(found.isneginf(), expected.isneginf()), name
    numbers = expected.isfinite()
    assert numbers.any(), name
    scale = expected[numbers].abs().max()
    assert (found[numbers] - expected[numbers]).abs().max() <= TOLERANCE * scale, name


# --- what files hold -------------------------------------------------------------------------------------


def test_every_saved_object_and_every_stored_output_is_checked_here():
    assert set(SAVED) == set(OBJECTS)
    checked = {f"{name}.{key}" for name, about in OBJECTS.items() for key in about["outputs"]}
    checked |= {f"{name}.{key}" for name in REFITS for key in ("report", "report_loss")}
    checked |= {*FUNCTIONS, *ATTACHED, *GONE, "ByMask.gate", "Prototypes-moved.means"}
    assert {name for name in TENSORS if not name.startswith("input.")} <= checked
    assert {*FUNCTIONS, *ATTACHED, *GONE, "Prototypes-moved.means"} == set(CALLS)
    assert set(REFITS) | NOT_REFITTED == set(OBJECTS)


@pytest.mark.parametrize("name", SAVED)
def test_a_file_of_version_one_is_read_with_the_class_of_today(name):
    metadata, _ = read_safetensors(SAVED[name])
    assert (metadata["format"], metadata["version"]) == ("eli", "1")
    about = OBJECTS[name]
    loaded = BASES[about["base"]].load(SAVED[name])
    assert type(loaded).__name__ == RENAMED.get(about["class"], about["class"])
    assert loaded.fitted
    assert not loaded.training
    wrong = Gate if about["base"] == "Aligner" else Aligner
    with pytest.raises(elign.FileFormatError):
        wrong.load(SAVED[name])


@pytest.mark.parametrize("name", SAVED)
def test_options_are_those_of_version_one(name):
    translated = {"known": "old_classes"}
    wanted = {translated.get(key, key): value for key, value in OBJECTS[name]["config"].items()}
    found = load(name).config()
    kind = OBJECTS[name]["class"]
    if kind == "Blend":
        boundaries = wanted["old_classes"] if isinstance(wanted["old_classes"], list) else [wanted["old_classes"]]
        wanted = {"steps": wanted["steps"], "standard_errors": wanted["caution"], "task_boundaries": boundaries}
        assert [part["class"] for part in found["estimators"]] == [
            RENAMED.get(part["class"], part["class"]) for part in OBJECTS[name]["config"]["parts"]
        ]
        assert {key: found[key] for key in wanted} == wanted
    elif kind == "Aligned":
        assert found["aligner"] == OBJECTS[name]["config"]["aligner"]
        inside = OBJECTS[name]["config"]["readout"]["class"]
        assert found["classifier"]["class"] == RENAMED.get(inside, inside)
    else:
        added = {"Discriminant": {"shared": 1.0, "normalize": True}, "Prototypes": {"normalize": False}}
        added |= {"NearestMean": {"normalize": True}, "ByPrediction": {"logits": None}}
        assert found == wanted | added.get(kind, {})


def outputs(name, loaded, given):
    """What this object gives, by the names that outputs.json uses."""
    base = OBJECTS[name]["base"]
    if base == "Gate":
        return {"gate": loaded(given.z, head=given.head, aligner=given.aligner)}
    if base == "Readout":
        left_out = loaded.leave_one_out_scores(given.z_kept, given.labels_kept, logits=given.logits_kept)
        return {"scores": loaded(given.z, logits=given.logits), "left_out": left_out}
    z = given.z.double() if name.endswith("float64") else given.z
    found = {
        "align": loaded.align(z, generator=seeded()),
        "align_some": loaded.align(z, where=given.where, generator=seeded()),
        "align_weights": loaded.align(z, where=given.weights, generator=seeded()),
    }
    if isinstance(loaded, elign.EnergyAligner):
        found |= {"trajectory": loaded.trajectory(z, generator=seeded()), "energy": loaded.energy(z)}
    return found


@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_object_gives_what_it_gave(name, given, tmp_path):
    loaded = load(name)
    again = FittedModule.load(loaded.save(tmp_path / "file"))
    metadata, _ = read_safetensors(tmp_path / "file")
    assert (metadata["format"], metadata["version"]) == ("elign", "2")
    found, repeated = outputs(name, loaded, given), outputs(name, again, given)
    assert found.keys() == OBJECTS[name]["outputs"].keys()
    for key, value in found.items():
        same(value, f"{name}.{key}")
        # Written in today's format and read again, no bit changes.
        assert torch.equal(value, repeated[key])


def test_a_mask_is_what_it_was(given):
    same(elign.ByMask(given.where)(given.z), "ByMask.gate")


def test_moved_prototypes_have_the_means_that_they_had():
    same(load("Prototypes-moved").means, "Prototypes-moved.means")


# --- fits ------------------------------------------------------------------------------------------------

SMALL = {"hidden": (8, 8), "iterations": 80, "learning_rate": 0.01, "batch_size": 16, "steps": 10, "step_size": 0.1}


def energy(g, kind=torch.float32, direction="backward", **options):
    made = elign.EnergyAligner(**SMALL | options)
    return made.fit_latents(g.z_prev.to(kind), g.z_cur.to(kind), direction=direction)


def on_pairs(made, direction="backward"):
    return lambda g: made().fit_latents(g.z_prev, g.z_cur, direction=direction)


def directions(g, **options):
    return elign.Gaussian(shared=1.0, normalize=True, **options)


def chosen(g, parts, boundaries, **options):
    made = elign.Voting([elign.HeadLogits(), *map(load, parts)], task_boundaries=boundaries, **options)
    return made.fit(z=g.z_kept, labels=g.labels_kept, logits=g.logits_kept)


def moved_prototypes(g):
    statistics = elign.ClassStatistics(covariance="none").update(g.z_birth, g.labels_old)
    forward = elign.Ridge(penalty=0.5).fit_latents(g.z_prev, g.z_cur, direction="forward")
    made = elign.NearestMean(normalize=False)
    return made.fit(statistics.transport(forward), z=g.z_cur, labels=g.labels_new, classes=6)


REFITS = {
    "EnergyAligner": energy,
    "EnergyAligner-noise": lambda g: energy(g, noise=0.5, half_step=True, seed=3),
    "EnergyAligner-linear": on_pairs(lambda: elign.EnergyAligner(hidden=(), iterations=40)),
    "EnergyAligner-forward": lambda g: energy(g, direction="forward"),
    "EnergyAligner-float64": lambda g: energy(g, torch.float64),
    "MeanShift": on_pairs(elign.MeanShift),
    "MeanShift-forward": on_pairs(elign.MeanShift, "forward"),
    "MeanShift-mixup": lambda g: elign.MeanShift().fit(
        g.read_before, g.read_after, [g.x_new[:20], g.x_new[20:]], passes=3, mixup=0.4
    ),
    "RandomShift": on_pairs(lambda: elign.RandomShift(seed=5)),
    "RandomShift-norm": on_pairs(lambda: elign.RandomShift(norm=2.0)),
    # 0.1 was the default.
    "Ridge": lambda g: elign.Ridge(penalty=0.1).fit(g.read_before, g.read_after, [(g.x_new, g.labels_new)]),
    "Ridge-forward": on_pairs(lambda: elign.Ridge(penalty=0.5), "forward"),
    "Identity": on_pairs(elign.Identity),
    "LocalShift": on_pairs(lambda: elign.LocalShift(bandwidth=0.4, anchors=12, seed=2)),
    "LocalShift-forward": on_pairs(lambda: elign.LocalShift(anchors=20), "forward"),
    "Always": lambda g: elign.Always(),
    "ByPrediction": lambda g: elign.ByPrediction(old_classes=3),
    "ByPrediction-soft": lambda g: elign.ByPrediction(old_classes=3, soft=True),
    "ByPrediction-list": lambda g: elign.ByPrediction(old_classes=[0, 4]),
    "ByEnergy": lambda g: elign.ByEnergy(quantile=0.3).fit(g.aligner, g.z_cur),
    "ByEnergy-exemplars": lambda g: elign.ByEnergy().fit(g.aligner, g.z_cur, g.kept_old),
    "ByProbe": lambda g: elign.ByProbe().fit(g.kept_old, g.z_cur),
    "ByProbe-soft": lambda g: elign.ByProbe(penalty=0.1, soft=True).fit(g.kept_old, g.z_cur),
    "Dose": lambda g: elign.FixedStrength(shares=[0.4, 0.7, 1.0]).fit(
        g.aligner, g.head, g.z_kept, g.labels_kept, old_classes=OLD
    ),
    "Dose-default": lambda g: elign.FixedStrength().fit(g.aligner, g.head, g.z_kept, g.labels_kept, old_classes=OLD),
    "Dose-new-only": lambda g: elign.FixedStrength(shares=[0, 0.25, 0.5, 1], tolerance=0.05).fit(
        g.ridge, g.head, g.z_cur, g.labels_new, old_classes=OLD
    ),
    # Prototypes were statistics: they were never scored without one of their own latents.
    "Prototypes": lambda g: elign.NearestMean(normalize=False).fit(
        elign.ClassStatistics(covariance="none").update(g.z_kept, g.labels_kept)
    ),
    "Prototypes-moved": moved_prototypes,
    "NearestMean": lambda g: elign.NearestMean().fit(z=g.z_kept, labels=g.labels_kept),
    "Discriminant": lambda g: directions(g, shrinkage=0.1).fit(z=g.z_kept, labels=g.labels_kept),
    "Discriminant-shrinkage": lambda g: directions(g, shrinkage=0.6).fit(z=g.z_kept, labels=g.labels_kept, classes=6),
    "HeadScores": lambda g: elign.HeadLogits(),
    "Aligned": lambda g: elign.Aligned(
        g.aligner, directions(g, shrinkage=0.1).fit(z=g.aligner.align(g.z_kept), labels=g.labels_kept)
    ),
    "Aligned-head": lambda g: elign.Aligned(g.ridge, elign.HeadLogits()),
    "Blend": lambda g: chosen(g, ["NearestMean", "Discriminant", "Aligned"], OLD),
    "Blend-best": lambda g: chosen(g, ["Discriminant", "Aligned"], OLD, steps=5, standard_errors=0),
    "Blend-tasks": lambda g: chosen(g, ["Prototypes", "Aligned"], TASKS, standard_errors=0.5),
    # What `fit_blend` made of exemplars: the head, and a discriminant of the exemplars after alignment.
    "Blend-exemplars": lambda g: chosen(g, ["Aligned"], OLD, standard_errors=math.inf),
}
NOT_REFITTED = {"Blend-prototypes"}  # chosen on stand-ins, which there are no more

# Leave-one-out scores of statistics merged with latents: the old ones never left a latent out.
OTHER_OUTPUTS = {"Prototypes-moved": {"left_out"}}


@pytest.mark.parametrize("name", REFITS)
def test_the_same_fit_gives_the_same(name, given):
    made = REFITS[name](given)
    loaded = load(name)
    assert type(made) is type(loaded)
    for key, value in outputs(name, made, given).items():
        if key not in OTHER_OUTPUTS.get(name, ()):
            same(value, f"{name}.{key}")
    # What was chosen is chosen again.
    for key in {"weights", "offsets", "threshold", "strength"} & loaded.state_dict().keys():
        if not isinstance(loaded, elign.Gaussian):
            torch.testing.assert_close(made.state_dict()[key], loaded.state_dict()[key], atol=1e-6, rtol=1e-5)
    if isinstance(made, Aligner):
        check_report(made.report, name)


def check_report(report, name):
    fields = ("rows", "dim", "drift_before", "drift_after", "energy_previous", "energy_current", "energy_aligned")
    found = [getattr(report, field) for field in fields]
    expected = TENSORS[f"{name}.report"].tolist()
    assert [value is None for value in found] == [math.isnan(value) for value in expected]
    for value, stored in zip(found, expected, strict=True):
        assert value is None or value == pytest.approx(stored, rel=TOLERANCE, abs=TOLERANCE)
    assert report.rows == expected[0]
    assert report.dim == expected[1]
    loss = f"{name}.report_loss"
    assert (len(report.loss) > 0) == (loss in TENSORS)
    if loss in TENSORS:
        same(report.loss, loss)


# --- functions -------------------------------------------------------------------------------------------


class Bowl(nn.Module):
    """An energy that is no `EnergyModel`: half of the squared distance to 1."""

    def forward(self, z):
        return (z - 1).square().sum(dim=1) / 2


def network(hidden=(8, 8), **options):
    return elign.EnergyModel(DIM, hidden, generator=seeded(7), **options)


def split(g, outputs, boxes=None):
    """What `SplitOutputs` makes of the head's outputs for latents and aligned latents."""
    plain, moved = g.head(g.z), g.head(g.aligner.align(g.z))
    return outputs.merge(plain, moved) if boxes is None else outputs.merge((g.logits, boxes), (moved, boxes + 1))[1]


BOXES = torch.arange(400, dtype=torch.float32).reshape(20, 20)
FUNCTIONS = {
    "EnergyModel.weights0": lambda g: network().linear_maps()[0][0],
    "EnergyModel.E": lambda g: network()(g.z),
    "EnergyModel.linear.E": lambda g: network(())(g.z),
    "descend.end": lambda g: elign.descend(network(), g.z),
    "descend.trajectory": lambda g: elign.descend(network(), g.z[:4], steps=5, trajectory=True),
    "descend.half_step": lambda g: elign.descend(network(), g.z, steps=7, step_size=0.3, half_step=True),
    "descend.half_step_trajectory": lambda g: elign.descend(
        network(), g.z[:4], steps=3, step_size=0.3, half_step=True, trajectory=True
    ),
    "descend.noise": lambda g: elign.descend(network(), g.z, steps=7, noise=1.0, half_step=True, generator=seeded(9)),
    "descend.noise_trajectory": lambda g: elign.descend(
        network(), g.z[:4], steps=3, noise=1.0, trajectory=True, generator=seeded(9)
    ),
    "descend.linear": lambda g: elign.descend(network(()), g.z, steps=5),
    "descend.one_hidden": lambda g: elign.descend(network((8,), slope=0.1), g.z, steps=5),
    "descend.autograd": lambda g: elign.descend(Bowl(), g.z, steps=5),
    "descend.autograd_noise": lambda g: elign.descend(Bowl(), g.z, steps=5, noise=1.0, generator=seeded(9)),
    "descend.float64": lambda g: elign.descend(network().double(), g.z.double(), steps=5),
    "best_offset": lambda g: torch.tensor(
        best_offset(g.logits_kept, g.labels_kept, old_classes=OLD), dtype=torch.float64
    ),
    "best_offsets": lambda g: torch.tensor(
        best_offsets(g.logits_kept, g.labels_kept, boundaries=TASKS), dtype=torch.float64
    ),
    "OldOutputs.read": lambda g: split(g, elign.SplitOutputs(range(OLD))),
    "OldOutputs.background": lambda g: split(g, elign.SplitOutputs(range(1, OLD), background=0)),
    "OldOutputs.boxes": lambda g: split(g, elign.SplitOutputs(range(OLD)), BOXES),
    "Latents.z": lambda g: g.read_after(g.x),
}
GONE = {"Prototypes.stand_ins", "Prototypes.stand_ins_classes"}  # `ClassStatistics.sample` takes their place


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_gives_what_it_gave(name, given):
    same(FUNCTIONS[name](given), name)


ATTACHED = {
    "attach.none": lambda g: [],
    "attach.aligner": lambda g: [(g.aligner, {})],
    "attach.gate": lambda g: [(g.aligner, {"gate": elign.ByPrediction(old_classes=OLD)})],
    "attach.soft_gate": lambda g: [(g.aligner, {"gate": elign.ByPrediction(old_classes=OLD, soft=True)})],
    "attach.dose": lambda g: [
        (
            g.ridge,
            {
                "gate": elign.FixedStrength(shares=[0.4, 0.7, 1.0]).fit(
                    g.ridge, g.head, g.z_kept, g.labels_kept, old_classes=OLD
                )
            },
        )
    ],
    "attach.readout": lambda g: [(load("Prototypes"), {})],
    "attach.blend": lambda g: [(load("Blend-exemplars"), {})],
    "attach.blend_prototypes": lambda g: [(load("Blend-prototypes"), {})],
    "attach.outputs": lambda g: [(g.aligner, {"outputs": elign.SplitOutputs(range(OLD))})],
    "attach.outputs_background": lambda g: [(g.ridge, {"outputs": elign.SplitOutputs(range(1, OLD), background=0)})],
    "attach.aligner_and_readout": lambda g: [(g.ridge, {}), (load("NearestMean"), {})],
}


@pytest.mark.parametrize("name", ATTACHED)
def test_a_model_says_what_it_said_with_this_attached(name, given):
    parts = ATTACHED[name](given)
    plain = given.after(given.x)
    # In either order.
    for order in (parts, parts[::-1]):
        for what, options in order:
            elign.attach(given.after, HEAD, what, **options)
        same(given.after(given.x), name)
        same(copy.deepcopy(given.after)(given.x), name)
        assert elign.detach(given.after) == len(parts)
        assert torch.equal(given.after(given.x), plain)
