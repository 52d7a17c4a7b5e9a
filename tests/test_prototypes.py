"""Prototypes: means at birth, moved forward, read by direction; and the nearest mean of exemplars."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import elign
from elign import FileFormatError, LatentError, Latents, MeanShift, NearestMean, NotFittedError, OptionError, Prototypes


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
        elign.Aligner.load(tmp_path / "p.safetensors")


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
        with pytest.raises(LatentError, match=r"200 whole numbers|labels must be >= 0"):
            Prototypes().add(z_prev, wrong)


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 10**6))
def test_left_out_scores_are_those_of_means_made_without_the_row(classes, each, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    z = torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    found = NearestMean().add(z, labels).left_out(z, labels)
    for row in range(len(z)):
        rest = torch.arange(len(z)) != row
        expected = NearestMean().add(z[rest], labels[rest])(z[row])
        torch.testing.assert_close(found[row], expected, atol=1e-9, rtol=1e-7)


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_stand_ins_are_of_the_other_classes_and_spread_as_the_given_ones(per_class, seed):
    generator = torch.Generator().manual_seed(seed)
    born, labels = torch.randn(6, 3, generator=generator), torch.tensor([0, 1, 1, 3, 4, 5])
    prototypes = Prototypes().add(born, labels)
    new, new_labels = torch.randn(8, 3, generator=generator), torch.tensor([4, 5] * 4)
    z, classes = prototypes.stand_ins(new, new_labels, per_class=per_class, seed=seed)
    assert classes.tolist() == sorted([0, 1, 3] * per_class)
    residuals = new - Prototypes().add(new, new_labels).means[new_labels]
    assert all(torch.cdist(row[None], residuals).min() < 1e-4 for row in z - prototypes.means[classes])
    again, _ = prototypes.stand_ins(new, new_labels, per_class=per_class, seed=seed)
    assert torch.equal(z, again)


def test_stand_ins_of_prototypes_that_hold_old_classes_only(world):
    z_prev, z_cur, labels, prototypes = world
    new = labels >= 4
    z, classes = prototypes.stand_ins(z_cur[new], labels[new], per_class=2)
    assert classes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert z.shape == (8, z_prev.shape[1])
    for nothing in (
        lambda: prototypes.stand_ins(z[:0], classes[:0]),
        lambda: NearestMean().add(z, classes).left_out(z[:0], classes[:0]),
    ):
        with pytest.raises(LatentError, match="empty"):
            nothing()


def test_data_are_read_off_a_model_in_evaluation_mode():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9), nn.Linear(2, 4)).train()
    x, labels = torch.randn(12, 3), torch.arange(12) % 4
    found = Prototypes().add_data(Latents(model, "2"), [(x[:7], labels[:7]), (x[7:], labels[7:])])
    assert model[1].training
    torch.testing.assert_close(found.means, Prototypes().add(model[0](x).detach(), labels).means)


def test_a_nearest_mean_is_not_moved():
    shift = MeanShift().fit_latents(torch.eye(4), torch.eye(4) + 1, direction="forward")
    with pytest.raises(OptionError, match="make it anew"):
        NearestMean().add(torch.eye(4), torch.arange(4)).move(shift)


def test_nearest_mean_scales_each_exemplar_first():
    # Unscaled, the mean of class 0 would point to its long exemplar, (10, 0); scaled, to (1, 1).
    exemplars = torch.tensor([[10.0, 0.0], [0.0, 0.1], [1.0, 0.0]])
    scores = NearestMean().add(exemplars, torch.tensor([0, 0, 1]))(torch.tensor([[3.0, 3.0]]))
    assert scores.tolist() == [[pytest.approx(1.0), pytest.approx(math.sqrt(0.5))]]


def test_moved_under_inference_mode_they_can_be_loaded_into(world):
    z_prev, z_cur, _, prototypes = world
    aligner = MeanShift().fit_latents(z_prev, z_cur, direction="forward")
    state = {name: value.clone() for name, value in prototypes.state_dict().items()}
    with torch.inference_mode():
        prototypes.move(aligner)
    prototypes.load_state_dict(state)
    assert torch.equal(prototypes.means, state["means"])


def test_the_default_device_does_not_matter(world):
    z_prev, _, labels, prototypes = world
    new = labels >= 4
    with torch.device("meta"):
        made = Prototypes().add(z_prev, labels)
        stand_ins, classes = prototypes.stand_ins(z_prev[new], labels[new])
    assert torch.equal(made.means, Prototypes().add(z_prev, labels).means)
    expected = prototypes.stand_ins(z_prev[new], labels[new])
    assert torch.equal(stand_ins, expected[0])
    assert torch.equal(classes, expected[1])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_labels_may_be_of_a_small_type(world, dtype):
    z_prev, _, labels, _ = world
    assert torch.equal(Prototypes().add(z_prev, labels.to(dtype)).means, Prototypes().add(z_prev, labels).means)
