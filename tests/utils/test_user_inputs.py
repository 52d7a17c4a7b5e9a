"""What users really pass: batches, labels, models and numbers of all kinds give results or one named error."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict

import pytest
import torch
from tests.aligning import CLASSIFIERS, MAKERS, learned
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elign

DIM, CLASSES = 6, 4
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Net(nn.Module):
    """A body and a head called `fc`; the head may return anything."""

    def __init__(self, seed=0, classes=CLASSES, wrap=lambda logits: logits, dim=DIM):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(5, dim)
        self.fc = nn.Linear(dim, classes)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.fc(self.body(x)))


def samples(classes, rows=60, seed=0):
    """Inputs and labels of some classes, which are easy to tell apart."""
    labels = torch.tensor(classes).repeat(-(-rows // len(classes)))[:rows]
    centers = 4 * torch.randn(200, 5, generator=torch.Generator().manual_seed(99))
    x = centers[labels] + torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))
    return x, labels


def batches(classes, rows=60, seed=0, make=lambda x, y: (x, y)):
    x, labels = samples(classes, rows, seed)
    return [make(x[i : i + 20], labels[i : i + 20]) for i in range(0, rows, 20)]


def accuracy(model, classes, seed=7):
    x, labels = samples(classes, seed=seed)
    with torch.no_grad():
        found = model(x)
    found = found["logits"] if isinstance(found, dict) else found
    return float((found.argmax(dim=1) == labels).float().mean())


def fit_repair(old, new, make=lambda x, y: (x, y), models=None, **options):
    previous, current = models or (Net(0), Net(1))
    statistics = elign.ClassStatistics.from_data(previous, "fc", batches(old, make=make), **options)
    repair = elign.Repair("fc", force=True)
    return repair.fit(previous, current, batches(new, make=make), statistics=statistics, **options), current


def memory(known, *, statistics, exemplars):
    """What a repair is given of the old classes: "statistics", "exemplars", "both" or "nothing"."""
    makers = {"statistics": statistics, "exemplars": exemplars}
    return {name: make() for name, make in makers.items() if known in (name, "both")}


# Batches of Hugging Face.


class Encoding(UserDict):
    """What a processor of transformers returns: a mapping with attributes, and no dict."""

    def __getattr__(self, name):
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


class Output(OrderedDict):
    """What a model of transformers returns."""

    @property
    def logits(self):
        return self["logits"]


FORMS = {
    "labels last": lambda x, y: {"pixel_values": x, "labels": y},
    "labels first": lambda x, y: {"labels": y, "pixel_values": x},
    "an id before all else": lambda x, y: {"id": torch.arange(len(x)), "label": y, "image": x},
    "unusual names": lambda x, y: {"data": x, "target": y},
    "labels first, unusual input": lambda x, y: {"y": y, "features": x},
    "encoding": lambda x, y: Encoding({"labels": y, "pixel_values": x}),
    "list": lambda x, y: [x, y],
    "more entries": lambda x, y: (x, y, torch.zeros(len(x))),
    "labels in a list": lambda x, y: (x, y.tolist()),
    "column of labels": lambda x, y: (x, y.unsqueeze(1)),
    "small whole numbers": lambda x, y: (x, y.to(torch.uint8)),
    "numpy": lambda x, y: (x, y.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_any_form_are_the_same_data(form):
    wanted, _ = fit_repair([0, 1], [2, 3])
    found, _ = fit_repair([0, 1], [2, 3], make=FORMS[form])
    state = found.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in wanted.state_dict().items())


@pytest.mark.parametrize("wrap", [lambda logits: Output(loss=None, logits=logits), lambda logits: {"logits": logits}])
def test_models_and_heads_that_return_mappings(wrap):
    repair, current = fit_repair([0, 1], [2, 3], models=(Net(0, wrap=wrap), Net(1, wrap=wrap)))
    with repair.attach(current.eval()):
        found = current(samples([0, 1, 2, 3])[0])
        assert type(found) is type(wrap(None))
        assert accuracy(current, [0, 1, 2, 3]) > 0.9

    class Head(nn.Linear):
        def forward(self, z):
            return wrap(super().forward(z))

    models = Net(0), Net(1)
    for model in models:
        head = Head(DIM, CLASSES)
        head.load_state_dict(model.fc.state_dict())
        model.fc = head
    again, current = fit_repair([0, 1], [2, 3], models=models)
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in repair.state_dict().items())
    with again.attach(current.eval()):
        assert accuracy(current, [0, 1, 2, 3]) > 0.9


# Data.

READERS = {
    "Repair": lambda data: elign.Repair("fc").fit(Net(0), Net(1), data),
    "Pairs": lambda data: elign.Pairs.from_models(Net(0), Net(1), "fc", data),
    "ClassStatistics": lambda data: elign.ClassStatistics.from_data(Net(0), "fc", data),
}
ALL_READERS = READERS | {
    "Aligner": lambda data: elign.Ridge().fit(elign.Latents(Net(0), "fc"), elign.Latents(Net(1), "fc"), data)
}


@pytest.mark.parametrize("reader", ALL_READERS)
def test_a_dataset_in_place_of_a_loader_is_named(reader):
    dataset = TensorDataset(*samples([2, 3]))
    with pytest.raises(elign.LatentError, match="DataLoader"):
        ALL_READERS[reader](dataset)
    ALL_READERS[reader](DataLoader(dataset, batch_size=16))


BAD_DATA = {
    "no batch": [[], (), iter([]), DataLoader(TensorDataset(torch.zeros(0, 5), torch.zeros(0)))],
    "must give batches": [3, None, Net(0)],
    "": [[(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))], [{}], [()], [(torch.zeros(5), torch.tensor(1))]],
}


@pytest.mark.parametrize("says", BAD_DATA)
@pytest.mark.parametrize("reader", ALL_READERS)
def test_no_data_empty_batches_and_single_samples_are_named(reader, says):
    for data in BAD_DATA[says]:
        with pytest.raises(elign.LatentError, match=says):
            ALL_READERS[reader](data)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("reader", ALL_READERS)
def test_inputs_that_are_no_numbers_are_named(reader, number):
    data = batches([2, 3])
    data[1][0][3, 2] = number
    with pytest.raises(elign.LatentError, match="NaN or infinite"):
        ALL_READERS[reader](data)


LABELS = {
    "beyond all heads": lambda y: y + 2**40,
    "largest": lambda y: torch.full_like(y, 2**63 - 1),
    "negative": lambda y: y - 3,
    "floating point": lambda y: y.float(),
    "one-hot": lambda y: nn.functional.one_hot(y, CLASSES),
    "soft": lambda y: nn.functional.one_hot(y, CLASSES).float(),
    "truth values": lambda y: y > 2,
    "complex": lambda y: y.to(torch.complex64),
    "too few": lambda y: y[:-1],
    "text": lambda y: ["cat"] * len(y),
    "None": lambda y: None,
    "unsigned": lambda y: y.to(torch.uint64),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("reader", READERS)
def test_labels_that_are_no_classes_are_named(reader, kind):
    with pytest.raises(elign.LatentError):
        READERS[reader](batches([2, 3], make=lambda x, y: (x, LABELS[kind](y))))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("fit", ["statistics", "NearestMean", "Gaussian", "LinearHead", "Voting", "strength", "repair"])
def test_labels_of_latents_that_are_no_classes_are_named(fit, kind):
    z, labels = torch.randn(40, DIM, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
    wrong = LABELS[kind](labels.clamp(min=2) if kind == "truth values" else labels)
    shift = elign.MeanShift().fit_latents(z, z + 1)
    fits = {
        "statistics": lambda: elign.ClassStatistics().update(z, wrong),
        "NearestMean": lambda: elign.NearestMean().fit(z=z, labels=wrong),
        "Gaussian": lambda: elign.Gaussian().fit(z=z, labels=wrong),
        "LinearHead": lambda: elign.LinearHead().fit(z=z, labels=wrong),
        "Voting": lambda: elign.Voting([elign.HeadLogits()], task_boundaries=2).fit(z=z, labels=wrong, logits=z),
        "strength": lambda: elign.FixedStrength().fit(shift, nn.Linear(DIM, 4), z, wrong, old_classes=2),
        "repair": lambda: elign.Repair().fit_latents(z, z + 1, wrong, head=nn.Linear(DIM, 4)),
    }
    with pytest.raises(elign.LatentError):
        fits[fit]()


@pytest.mark.parametrize("known", ["statistics", "exemplars", "both", "nothing"])
def test_classes_need_not_follow_each_other(known):
    old, new = [3, 7, 50], [9, 80]
    previous, current = Net(0, classes=100), Net(1, classes=100)
    given = memory(
        known,
        statistics=lambda: elign.ClassStatistics.from_data(previous, "fc", batches(old)),
        exemplars=lambda: batches(old, rows=60, seed=5),
    )
    repair = elign.Repair("fc", force=True).fit(previous, current, batches(new), **given)
    x, labels = samples([*old, *new], seed=8)
    with torch.no_grad(), repair.attach(current.eval()):
        found = current(x)
    assert found.shape == (len(x), 100)
    assert not found.isnan().any()
    if known != "nothing":
        assert repair.statistics.classes.tolist() == sorted([*old, *new])
        assert float((found.argmax(dim=1) == labels).float().mean()) > 0.9
        torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(len(x)))
        assert set(found.argmax(dim=1).tolist()) <= {*old, *new}


# Feature maps.


class Maps(nn.Module):
    """A head that reads feature maps (N, D, H, W) whose width is the number of channels."""

    def __init__(self, head, shape=(DIM, DIM, DIM)):
        super().__init__()
        self.body, self.head, self.shape = nn.Linear(5, math.prod(shape)), head, shape

    def forward(self, x):
        return self.head(self.body(x).reshape(len(x), *self.shape)).flatten(1)[:, :CLASSES]


HEADS = {
    "conv": lambda: Maps(nn.Conv2d(DIM, CLASSES, 1)),
    "pooled": lambda: Maps(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(DIM, CLASSES))),
    "flattened": lambda: Maps(nn.Sequential(nn.Flatten(), nn.Linear(DIM**3, CLASSES))),
    "conv1d": lambda: Maps(nn.Conv1d(DIM, CLASSES, 1), (DIM, DIM)),
}


@pytest.mark.parametrize("kind", HEADS)
def test_feature_maps_are_refused(kind):
    models = HEADS[kind](), HEADS[kind]()
    data = batches([2, 3])
    for read in (
        lambda: elign.MeanShift().fit(*(elign.Latents(model, "head") for model in models), data),
        lambda: elign.Repair("head").fit(*models, data),
        lambda: elign.ClassStatistics.from_data(models[0], "head", data),
    ):
        with pytest.raises((elign.LatentError, elign.AttachError)):
            read()
    z, labels = torch.randn(40, DIM), torch.arange(40) % CLASSES
    for what in (elign.MeanShift().fit_latents(z, z + 1), elign.NearestMean().fit(z=z, labels=labels)):
        with pytest.raises((elign.LatentError, elign.AttachError)), elign.attach(models[0].eval(), "head", what):
            models[0](data[0][0])
    assert elign.detach(models[0]) == 0


# Numbers.


def scaled_problem(scale, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % CLASSES
    z_prev = 3 * torch.eye(DIM)[labels] + torch.randn(80, DIM, generator=generator)
    z_cur = z_prev @ (torch.eye(DIM) + 0.2 * torch.randn(DIM, DIM, generator=generator)) + 1
    return (z_prev.double() * scale).to(dtype), (z_cur.double() * scale).to(dtype), labels


def far_away():
    """Latents unlike all others."""
    rows = torch.randn(5, DIM, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    return [scale * rows for scale in (1e20, 1e30, 1e-40)]


SCALES = [1e20, 1e-40, 1e-20, 1e10, 1e30, 1.0]
ALIGNERS = MAKERS | {
    "ridge with a penalty": lambda: elign.Ridge(penalty=0.1),
    "mlp": lambda: elign.MLPMap(width=2, epochs=2),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", ALIGNERS)
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_aligners_of_huge_and_tiny_latents_give_numbers(kind, scale, direction):
    z_prev, z_cur, labels = scaled_problem(scale)
    source = z_cur if direction == "backward" else z_prev
    try:
        aligner = learned(ALIGNERS[kind](), z_prev, z_cur, direction=direction)
    except elign.ElignError:
        assert scale > 1e9  # too large is named; too small is no reason to fail
        return
    for rows in (source, torch.zeros(3, DIM), *far_away()):
        assert aligner.align(rows).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in aligner.state_dict().values())
    if direction == "forward":
        try:
            statistics = elign.ClassStatistics().update(z_prev, labels)
        except elign.LatentError:
            assert scale > 1e9
            return
        if aligner.needs_images:  # it knows three classes
            statistics = statistics.select([0, 1, 2])
        moved = aligner.transport(statistics)
        assert all(tensor.isfinite().all() for tensor in moved.state_dict().values())


def only_numbers(scores, missing=()):
    """Fails if there is NaN or plus infinity, or minus infinity elsewhere than in classes without data."""
    assert not scores.isnan().any()
    there = [label for label in range(scores.shape[1]) if label not in missing]
    assert scores[:, there].isfinite().all()
    assert (scores[:, list(missing)] == -torch.inf).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("known", ["latents", "statistics"])
def test_classifiers_of_huge_and_tiny_latents_give_numbers(kind, scale, known):
    _, z, labels = scaled_problem(scale)
    try:
        given = {"z": z, "labels": labels} if known == "latents" else {}
        if known == "statistics":
            given["statistics"] = elign.ClassStatistics().update(z, labels)
        classifier = CLASSIFIERS[kind]().fit(**given, classes=CLASSES + 1)
    except elign.ElignError:
        assert scale > 1e9
        return
    for rows in (z, torch.zeros(3, DIM), torch.randn(3, DIM), *(far_away() if scale == 1 else ())):
        only_numbers(classifier(rows), missing=[CLASSES])
    left_out = classifier.leave_one_out_scores(z, labels)
    only_numbers(left_out, missing=[CLASSES])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("soft", [True, False])
def test_gates_of_huge_and_tiny_latents_give_weights(scale, soft):
    z_prev, z_cur, labels = scaled_problem(scale)
    head = Net(4).fc
    with torch.no_grad():
        head.weight /= max(scale, 1)
    gates = [
        elign.Always(),
        elign.ByPrediction(old_classes=2, soft=soft),
        elign.ByProbe(soft=soft).fit(z_cur[labels < 2], z_cur[labels >= 2]),
    ]
    shift = elign.MeanShift().fit_latents(z_prev, z_cur)
    gates.append(elign.FixedStrength().fit(shift, head, z_cur, labels, old_classes=2))
    for gate in gates:
        weights = gate(z_cur, head=head, aligner=shift)
        assert ((weights >= 0) & (weights <= 1)).all()
        assert shift.align(z_cur, where=weights).isfinite().all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("known", ["statistics", "exemplars", "both", "nothing"])
def test_repairs_of_huge_and_tiny_latents_give_numbers(scale, known):
    z_prev, z_cur, labels = scaled_problem(scale)
    old, new = labels < 2, labels >= 2
    head = Net(4).fc
    with torch.no_grad():
        head.weight /= max(scale, 1)
    try:
        given = memory(
            known,
            statistics=lambda: elign.ClassStatistics().update(z_prev[old], labels[old]),
            exemplars=lambda: (z_cur[old], labels[old], z_prev[old]),
        )
        repair = elign.Repair(force=True)
        repair.fit_latents(z_prev[new], z_cur[new], labels[new], head=head, **given)
    except elign.ElignError:
        assert scale > 1e9
        return
    with torch.no_grad():
        found = repair(z_cur, logits=head(z_cur))
    assert found.isfinite().all()


# Half precision.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("known", ["statistics", "exemplars", "both", "nothing"])
def test_models_in_half_precision(dtype, known):
    previous, current = (model.to(dtype) for model in (Net(0), Net(1)))
    half = lambda x, y: (x.to(dtype), y)  # noqa: E731
    given = memory(
        known,
        statistics=lambda: elign.ClassStatistics.from_data(previous, "fc", batches([0, 1], make=half)),
        exemplars=lambda: batches([0, 1], seed=5, make=half),
    )
    repair = elign.Repair("fc", force=True).fit(previous, current, batches([2, 3], make=half), **given)
    x, labels = samples([0, 1, 2, 3], seed=8)
    with torch.no_grad(), repair.attach(current.eval()):
        found = current(x.to(dtype))
    assert found.dtype == dtype
    assert not found.isnan().any()
    if known != "nothing":
        assert found.isfinite().all()
        assert float((found.argmax(dim=1) == labels).float().mean()) > 0.85


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_scores_that_half_precision_cannot_hold_stay_numbers(kind):
    _, z, labels = scaled_problem(1.0)
    classifier = CLASSIFIERS[kind]().fit(z=z, labels=labels, classes=CLASSES + 1)
    rows = (1e4 * z[:8]).half()
    assert rows.isfinite().all()
    found = classifier(rows)
    assert found.dtype == torch.float16
    only_numbers(found, missing=[CLASSES])
    single = classifier(rows.float())
    assert torch.equal(found.argmax(dim=1), single.argmax(dim=1)) or kind == "linear head"


@pytest.mark.parametrize("kind", [*CLASSIFIERS, "head", "voting", "weights"])
def test_an_infinite_logit_of_a_half_precision_head_does_not_spoil_its_row(kind):
    _, z, labels = scaled_problem(1.0)
    head = Net(4).fc
    logits = torch.tensor([[1.0, 2.0, torch.inf, 3.0]], dtype=torch.float16)
    means = elign.NearestMean().fit(z=z, labels=labels)
    made = {
        "head": elign.HeadLogits,
        "weights": lambda: elign.WeightAligned().fit(head=head, old_classes=2),
        "voting": lambda: elign.Voting([elign.HeadLogits()], task_boundaries=2).fit(z=z, labels=labels, head=head),
    }
    classifier = made[kind]() if kind in made else CLASSIFIERS[kind]().fit(z=z, labels=labels)
    with torch.no_grad():
        found = classifier(z[:1].half(), logits=logits)
        assert not found.isnan().any()
        if kind in made:
            assert found.argmax(dim=1).tolist() == [2]
        both = elign.Voting([elign.HeadLogits(), means], task_boundaries=2).fit(z=z, labels=labels, head=head)
        assert not both(z[:1].half(), logits=logits).isnan().any()


@pytest.mark.parametrize("known", ["statistics", "exemplars", "nothing", "head"])
def test_an_infinite_logit_does_not_spoil_a_row_of_a_repair(known):
    z_prev, z_cur, labels = scaled_problem(1.0)
    old, new = labels < 2, labels >= 2
    head = Net(4).fc
    given = memory(
        known,
        statistics=lambda: elign.ClassStatistics().update(z_prev[old], labels[old]),
        exemplars=lambda: (z_cur[old], labels[old]),
    )
    weights = None if known == "head" else head
    repair = elign.Repair(force=True)
    repair.fit_latents(z_prev[new], z_cur[new], labels[new], head=head.forward, weights=weights, **given)
    assert repair.mode == {"nothing": "weights", "head": "head"}.get(known, "classifier")
    logits = torch.tensor([[1.0, 2.0, torch.inf, 3.0]], dtype=torch.float16)
    with torch.no_grad():
        found = repair(z_cur[:1].half(), logits=logits)
    assert not found.isnan().any()
    if known in ("nothing", "head"):
        assert found.argmax(dim=1).tolist() == [2]


def test_split_outputs_of_infinite_logits_have_no_nan():
    here = torch.tensor([[1.0, torch.inf, 0.0]], dtype=torch.float16)
    there = torch.tensor([[torch.inf, 0.0, 1.0]], dtype=torch.float16)
    merged = elign.SplitOutputs([0]).merge(here, there)
    assert not merged.isnan().any()
    assert merged.argmax(dim=1).tolist()[0] in (0, 1)
