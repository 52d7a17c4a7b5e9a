"""Prototypes: means at birth, moved forward, read by direction; and readouts in the place of a head."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import eli
from eli import AttachError, FileFormatError, LatentError, MeanShift, NotFittedError, OptionError, Prototypes, Readout
from eli.gates import logits_of


@pytest.fixture
def world(pairs):
    """Latents of six classes before and after a drift, and prototypes of the first four."""
    z_prev, z_cur = pairs
    labels = torch.arange(len(z_prev)) % 6
    first = labels < 4
    return z_prev, z_cur, labels, Prototypes().add(z_prev[first], labels[first])


@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 10**6))
def test_means_and_counts_are_those_of_the_classes(classes, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    z, labels = torch.randn(rows, 3, generator=generator), torch.randint(classes, (rows,), generator=generator)
    made = Prototypes().add(z, labels)
    for label in range(int(labels.max()) + 1):
        mine = z[labels == label]
        assert made.counts[label] == len(mine)
        if len(mine):
            torch.testing.assert_close(made.means[label], mine.mean(dim=0), atol=1e-6, rtol=1e-5)


def test_classes_may_come_in_any_number_of_calls_and_any_order(world):
    z, _, labels, _ = world
    one = Prototypes().add(z, labels)
    several = Prototypes()
    for part in ([5], [0, 3], [4], [1, 2]):
        chosen = torch.isin(labels, torch.tensor(part))
        several.add(z[chosen], labels[chosen])
    assert torch.equal(one.counts, several.counts)
    torch.testing.assert_close(one.means, several.means)


def test_scores_are_cosines_and_labels_without_a_prototype_are_never_chosen(world):
    z, _, labels, _ = world
    made = Prototypes().add(z[labels == 2], labels[labels == 2])
    scores = made(z.reshape(20, 10, -1))
    assert scores.shape == (20, 10, 3)
    assert scores[..., :2].isneginf().all()
    expected = torch.nn.functional.cosine_similarity(z, z[labels == 2].mean(dim=0, keepdim=True), dim=1)
    torch.testing.assert_close(scores[..., 2].reshape(-1), expected)
    assert made(z.half()).dtype == torch.float16


def test_a_forward_aligner_moves_them_all(world):
    z_prev, z_cur, labels, prototypes = world
    born = prototypes.means.clone()
    forward = MeanShift().fit_latents(z_prev, z_cur, direction="forward")
    assert prototypes.move(forward) is prototypes
    torch.testing.assert_close(prototypes.means, forward.align(born))
    new = labels >= 4
    prototypes.add(z_cur[new], labels[new])
    torch.testing.assert_close(prototypes.means[:4], forward.align(born))
    torch.testing.assert_close(prototypes.means[4], z_cur[labels == 4].mean(dim=0))


def test_labels_that_were_never_added_stay_without_a_prototype_when_the_others_move(world):
    z_prev, z_cur, labels, _ = world
    made = Prototypes().add(z_prev[labels == 2], labels[labels == 2])
    made.move(MeanShift().fit_latents(z_prev, z_cur, direction="forward"))
    assert made.means[:2].abs().sum() == 0


def test_one_file_holds_them(world, tmp_path):
    z, _, _, prototypes = world
    loaded = Prototypes.load(prototypes.save(tmp_path / "p.safetensors"))
    assert torch.equal(loaded(z), prototypes(z))
    assert torch.equal(loaded.counts, prototypes.counts)
    with pytest.raises(FileFormatError, match="holds a Prototypes"):
        eli.Aligner.load(tmp_path / "p.safetensors")


def test_what_cannot_be_is_said(world):
    z_prev, z_cur, labels, prototypes = world
    with pytest.raises(NotFittedError, match="add"):
        Prototypes()(z_prev)
    with pytest.raises(OptionError, match="class 0 has a prototype already"):
        prototypes.add(z_prev, labels)
    with pytest.raises(OptionError, match='direction="forward"'):
        prototypes.move(MeanShift().fit_latents(z_prev, z_cur))
    with pytest.raises(LatentError, match="dimension 6, the latents 5"):
        prototypes.add(z_prev[:, :5], labels + 6)
    with pytest.raises(LatentError, match="dimension 6, got shape"):
        prototypes(z_prev[:, :5])
    for wrong in (labels[:-1], labels.float(), labels - 1):
        with pytest.raises(LatentError, match="whole numbers >= 0"):
            Prototypes().add(z_prev, wrong)


# --- attached --------------------------------------------------------------------------------------------


class Sum(Readout):
    """The head's logits plus the first coordinate of the latent."""

    learns = False

    def forward(self, z, *, logits=None):
        return logits + z[..., :1]


@pytest.fixture
def x():
    return torch.randn(9, 5, generator=torch.Generator().manual_seed(1))


def test_prototypes_take_the_place_of_a_head(net, x):
    z = net.body(x).detach()
    prototypes = Prototypes().add(z, torch.arange(9) % 4)
    before = net(x)
    with eli.attach(net, "fc", prototypes) as attachment:
        assert attachment.readout is prototypes
        assert torch.equal(net(x), prototypes(z))
        net.fc.train()
        assert torch.equal(net(x), before)
        net.fc.eval()
    assert torch.equal(net(x), before)


def test_a_readout_reads_aligned_latents_and_the_logits_of_these(net, x, shift):
    with eli.attach(net, "fc", shift), eli.attach(net, "fc", Sum()):
        moved = shift.align(net.body(x))
        torch.testing.assert_close(net(x), net.fc.forward(moved) + moved[:, :1])
        assert eli.detach(net) == 2
    assert not net.fc._forward_hooks
    assert not net.fc._forward_pre_hooks


class Result(NamedTuple):
    logits: Tensor
    extra: str


class Wrapped(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.linear = nn.Linear(6, 4)

    def forward(self, z):
        return self.form(self.linear(z))


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: (y, "extra"),
        lambda y: [y, "extra"],
        lambda y: Result(y, "extra"),
        lambda y: {"logits": y, "extra": 1},
        lambda y: {"only": y},
    ],
)
def test_what_a_head_returns_keeps_its_form(form):
    model = nn.Sequential(nn.Linear(5, 6), Wrapped(form)).eval()
    before = model(torch.ones(2, 5))
    with eli.attach(model, "1", Sum()):
        after = model(torch.ones(2, 5))
    assert type(after) is type(before)
    plain, changed = (logits_of(output) for output in (before, after))
    torch.testing.assert_close(changed, plain + model[0](torch.ones(2, 5))[:, :1])
    if not isinstance(before, torch.Tensor):
        assert len(after) == len(before)


def test_one_readout_on_a_head_at_a_time_and_no_gate(net):
    eli.attach(net, "fc", Sum())
    with pytest.raises(AttachError, match="already carries a readout"):
        eli.attach(net, "fc", Sum())
    other = Sum()
    assert eli.attach(net, "fc", other, replace=True).readout is other
    assert eli.detach(net) == 1
    with pytest.raises(AttachError, match="no use for one"):
        eli.attach(net, "fc", Sum(), gate=eli.Always())
    with pytest.raises(NotFittedError):
        eli.attach(net, "fc", Prototypes())
    with pytest.raises(AttachError, match="dimension"):
        eli.attach(net, "fc", Prototypes().add(torch.ones(1, 3), torch.tensor([0])))
