"""A blend in one call: from two models and training data to something that stands in the place of a head."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import elign
from elign import (
    Aligned,
    AttachError,
    Discriminant,
    HeadScores,
    LatentError,
    MeanShift,
    NearestMean,
    OptionError,
    Prototypes,
)

CLASSES, KNOWN, DIM = 6, 4, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, DIM), nn.Tanh())
        self.drop = nn.Dropout(0.9)
        self.fc = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        return self.fc(self.drop(self.body(x)))


@pytest.fixture(scope="module")
def world():
    """A model of four classes, and the same after it was trained on two more: it takes all for those."""
    torch.manual_seed(0)
    centers = 1.5 * torch.randn(CLASSES, 10)

    def data(classes, each):
        labels = torch.tensor(classes).repeat_interleave(each)
        return centers[labels] + torch.randn(len(labels), 10), labels

    def train(model, x, y, steps):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model.fc(model.body(x)), y).backward()
            optimizer.step()
        return model.eval()

    old, new = data([0, 1, 2, 3], 50), data([4, 5], 50)
    before = train(Net(), *old, 150)
    after = train(copy.deepcopy(before), *new, 150)
    return before, after, old, new, data(range(CLASSES), 5), data(range(CLASSES), 60)


def batches(data, size=32):
    return DataLoader(TensorDataset(*data), batch_size=size)


def fit(world, **changes):
    """With a simple aligner, which is quick."""
    before, after, _, new, exemplars, _ = world
    given = {"head": "fc", "new": batches(new), "exemplars": batches(exemplars), "known": KNOWN, "aligner": MeanShift()}
    return elign.fit_blend(**{"previous": before, "current": after, **given, **changes})


def accuracy(model, data):
    with torch.no_grad():
        return float((model(data[0]).argmax(dim=1) == data[1]).float().mean())


def test_with_exemplars_it_wins_what_was_forgotten(world):
    before, after, _, new, exemplars, test = world
    base = accuracy(after, test)
    blend = elign.fit_blend(before, after, "fc", batches(new), batches(exemplars), known=KNOWN)
    assert [type(part) for part in blend.parts] == [HeadScores, Aligned]
    assert isinstance(blend.parts[1].readout, Discriminant)
    assert blend.prototypes is None
    with elign.attach(after, "fc", blend):
        assert accuracy(after, test) > base + 0.1


def test_prototypes_move_along_and_are_kept_for_the_next_time(world):
    before, after, old, _, _, test = world
    prototypes = Prototypes().add(before.body(old[0]), old[1])
    stored = prototypes.means.clone()
    blend = fit(world, exemplars=None, prototypes=prototypes)
    assert [type(part) for part in blend.parts] == [HeadScores, Prototypes, Aligned]
    assert torch.equal(prototypes.means, stored)
    assert blend.prototypes.counts.tolist() == [50] * CLASSES
    assert not torch.equal(blend.prototypes.means[:KNOWN], stored)
    with elign.attach(after, "fc", blend):
        with_blend = accuracy(after, test)
    assert with_blend > accuracy(after, test)


def test_a_head_may_have_room_for_classes_to_come_and_its_model_may_be_wrapped(world):
    before, after = copy.deepcopy(world[0]), copy.deepcopy(world[1])
    for net in (before, after):
        narrow, net.fc = net.fc, nn.Linear(DIM, CLASSES + 3)
        net.fc.weight.data[:CLASSES], net.fc.bias.data[:CLASSES] = narrow.weight.data, narrow.bias.data
    old = world[2]
    prototypes = Prototypes().add(before.body(old[0]), old[1])
    for changes in ({}, {"exemplars": None, "prototypes": prototypes}):
        blend = fit(world, previous=before, current=nn.DataParallel(after), **changes)
        with elign.attach(after, "fc", blend):
            scores = after(world[-1][0])
        assert scores.shape[1] == CLASSES + 3
        assert int(scores.argmax(dim=1).max()) < CLASSES


def test_old_classes_may_have_come_in_several_tasks(world):
    blend = fit(world, known=[2, KNOWN])
    assert (blend.ends, blend.offsets.shape) == ([2, KNOWN], (2,))


def test_it_is_saved_and_loaded_like_anything_else(world, tmp_path):
    after, test = world[1], world[-1]
    blend = fit(world)
    blend.save(tmp_path / "blend.safetensors")
    loaded = elign.Readout.load(tmp_path / "blend.safetensors")
    with elign.attach(after, "fc", blend):
        expected = after(test[0])
    with elign.attach(after, "fc", loaded):
        assert torch.equal(after(test[0]), expected)


def test_what_is_attached_and_the_modes_of_the_models_do_not_matter(world):
    before, after = world[:2]
    plain = fit(world)
    training = copy.deepcopy(after).train()
    with elign.attach(training, "fc", plain):
        again = fit(world, previous=copy.deepcopy(before).train(), current=training)
        assert all(part.training for part in training.modules())
    assert torch.equal(again.offsets, plain.offsets)
    assert plain.offsets != 0


def test_data_may_come_once_and_in_any_form(world):
    _, _, _, new, exemplars, _ = world
    expected = fit(world)
    found = fit(
        world,
        new=({"y": y.tolist(), "x": x} for x, y in batches(new)),
        exemplars=iter([{"y": exemplars[1], "x": exemplars[0]}]),
        inputs=lambda batch: batch["x"],
        labels=lambda batch: batch["y"],
    )
    assert torch.allclose(found.offsets, expected.offsets)
    assert isinstance(found.parts[-1].aligner, MeanShift)


def test_a_model_may_set_autocast_by_itself(world):
    before, after, test = (copy.deepcopy(part) for part in (world[0], world[1], world[-1]))

    class Cast(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x)

    previous, current = Cast(before), Cast(after).eval()
    blend = fit(world, previous=previous, current=current, head="net.fc")
    base = accuracy(current, test)
    with elign.attach(current, "net.fc", blend):
        assert accuracy(current, test) > base


def test_a_head_may_take_its_latents_by_name(world):
    before, after = world[:2]

    class Head(nn.Module):
        def __init__(self, fc):
            super().__init__()
            self.fc = fc

        def forward(self, *, features):
            return {"logits": self.fc(features)}

    class Named(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.body, self.fc = net.body, Head(net.fc)

        def forward(self, x):
            return self.fc(features=self.body(x))["logits"]

    found = fit(world, previous=Named(before), current=Named(after), argument="features")
    assert torch.equal(found.offsets, fit(world).offsets)
    assert found.offsets != 0


MEANS = Prototypes().add(torch.eye(DIM)[:5], torch.arange(5))
ONLY_5 = [(torch.randn(9, 10), torch.full((9,), 5))]
OLD = Prototypes().add(torch.eye(DIM)[:4], torch.arange(4))
FEW = Prototypes().add(torch.eye(DIM)[:2], torch.arange(2))
SHORT = Prototypes().add(torch.eye(3), torch.arange(3))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"exemplars": None}, OptionError, "exemplars=.*prototypes=.*elign.ByPrediction"),
        ({"known": 5}, LatentError, "there is class 4 among the new data, but 5 old classes"),
        ({"argument": 1}, AttachError, "argument must be 0 or a keyword, not 1"),
        ({"head": "head"}, AttachError, "no module 'head'"),
        ({"new": []}, LatentError, "no batch"),
        ({"new": [torch.zeros(3, 10)]}, LatentError, "inputs and classes, in this order"),
        ({"new": [(torch.zeros(3, 10), torch.tensor([4, 5]))]}, LatentError, r"\[3, 3\] latents but 2 classes"),
        ({"prototypes": Prototypes()}, OptionError, "give exemplars or prototypes"),
        ({"exemplars": None, "prototypes": NearestMean()}, OptionError, "must be elign.Prototypes.* got a NearestMean"),
        ({"exemplars": None, "prototypes": MEANS}, OptionError, "class 4 has a prototype"),
        ({"known": 3}, LatentError, "no new sample of class 3"),
        ({"head": nn.Linear(1, 1)}, OptionError, 'name of the head, "fc" say'),
        ({"new": ONLY_5, "exemplars": None, "prototypes": OLD}, LatentError, "no new sample of class 4"),
        ({"new": [(torch.randn(9, 10), torch.full((9,), 4.0))]}, LatentError, "whole numbers, got torch.float32"),
        ({"new": [(torch.randn(9, 10), torch.full((9,), -4))]}, LatentError, "labels must be >= 0"),
        ({"new": [(torch.zeros(0, 10), torch.zeros(0, dtype=torch.long))]}, LatentError, "empty"),
        ({"exemplars": None, "prototypes": FEW}, LatentError, "no prototype of class 2"),
        ({"exemplars": [(torch.randn(20, 10), torch.arange(20) % 5)]}, LatentError, "no exemplar .*of class 5"),
        ({"exemplars": [(torch.randn(20, 10), 2 * torch.arange(20) % 6)]}, LatentError, "no exemplar .*of class 1"),
        ({"known": [4, 4]}, OptionError, r"several that grow, got \[4, 4\]"),
        ({"exemplars": None, "prototypes": SHORT}, LatentError, "dimension 3, the latents 8"),
        ({"exemplars": None, "prototypes": Prototypes()}, elign.NotFittedError, "add"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(world, changes, error, says):
    with pytest.raises(error, match=says):
        fit(world, **changes)
