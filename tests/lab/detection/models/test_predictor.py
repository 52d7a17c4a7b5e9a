import pytest
import torch

from elign import OptionError
from elign.lab.detection.models.predictor import Predictor


@pytest.mark.parametrize("class_agnostic", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
def test_outputs_have_a_column_for_each_class_and_boxes_as_asked(class_agnostic, unknown):
    logits, deltas = Predictor(5, 3, class_agnostic=class_agnostic, unknown=unknown)(torch.rand(7, 5))
    assert logits.shape == (7, 4 + unknown)
    assert deltas.shape == (7, 4 if class_agnostic else 16)


@pytest.mark.parametrize("class_agnostic", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
def test_growing_keeps_what_old_rows_say_bit_for_bit(class_agnostic, unknown):
    predictor = Predictor(5, 2, class_agnostic=class_agnostic, unknown=unknown)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.normal_()
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    predictor.grow(3)
    after = predictor.state_dict()
    # Background and two classes stand first; the unknown moved behind the new ones.
    for kind in ("weight", "bias"):
        score = after[f"score.{kind}"]
        assert len(score) == 6 + unknown
        assert torch.equal(score[:3], before[f"score.{kind}"][:3])
        if unknown:
            assert torch.equal(score[-1], before[f"score.{kind}"][-1])
        old = before[f"box.{kind}"]
        assert torch.equal(after[f"box.{kind}"][: len(old)], old)
        assert len(after[f"box.{kind}"]) == (4 if class_agnostic else 24)
    assert predictor.classes == 5


def test_new_rows_start_small_without_bias_and_differ():
    predictor = Predictor(400, 1, class_agnostic=False, unknown=True)
    predictor.grow(50)
    new = predictor.score.weight[2:52]
    assert 0.009 < new.std().item() < 0.011
    assert 0.0009 < predictor.box.weight[8:].std().item() < 0.0011
    assert not predictor.score.bias.any()
    assert not predictor.box.bias.any()
    assert len(new.unique(dim=0)) == 50


def test_new_rows_come_from_torchs_own_random_numbers():
    def grown(seed):
        predictor = Predictor(5, 1)
        torch.manual_seed(seed)
        predictor.grow(2)
        return predictor.score.weight[2:]

    assert torch.equal(grown(1), grown(1))
    assert not torch.equal(grown(1), grown(2))


def test_growing_keeps_frozen_what_was_frozen():
    predictor = Predictor(5, 1).requires_grad_(False)
    predictor.grow(1)
    assert not predictor.score.weight.requires_grad
    assert predictor.score.out_features == 3


def test_can_begin_with_no_class():
    predictor = Predictor(5)
    assert predictor(torch.rand(2, 5))[0].shape == (2, 1)
    predictor.grow(2)
    assert predictor(torch.rand(2, 5))[0].shape == (2, 3)


@pytest.mark.parametrize("new", [0, -1])
def test_growing_by_nothing_is_an_error(new):
    with pytest.raises(OptionError, match=f"1 class or more, not by {new}"):
        Predictor(5, 1).grow(new)


def test_sizes_that_cannot_be_are_an_error():
    with pytest.raises(OptionError, match="latent_dim"):
        Predictor(0, 1)
