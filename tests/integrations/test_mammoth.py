"""The mixin for mammoth on a stand-in of it (`mammoth_stand_in.py`), trained for real on digits."""

from __future__ import annotations

import copy

import pytest
import torch

import elign
from elign.integrations import TaskAlignment
from elign.integrations.mammoth import ELIMixin


@pytest.fixture(scope="module")
def mammoth(stand_in):
    return stand_in("mammoth_stand_in")


@pytest.fixture
def learn(mammoth, digits, new_net):
    """Trains a model for two tasks; by default one that aligns everything by a ridge regression."""

    def run(base, *, gate=None, aligner=None, tasks=(0, 1), mixin=ELIMixin):
        class Model(mixin, base):
            def make_alignment(self):
                return TaskAlignment("classifier", aligner=aligner or elign.Ridge(), gate=gate or elign.Always())

        torch.manual_seed(0)
        model, dataset = Model(new_net()), mammoth.ContinualDataset(digits)
        for task in tasks:
            torch.manual_seed(task)
            mammoth.train(model, dataset, task)
        return model

    return run


def old_accuracy(outputs, labels):
    return (outputs[:, :5].argmax(dim=1) == labels).float().mean().item()


def test_old_classes_are_remembered_and_the_base_comes_back(mammoth, learn, digits):
    model = learn(mammoth.Sgd)
    x, y = digits.of(range(5), part="test")
    aligned = old_accuracy(mammoth.evaluate(model, x), y)
    model.alignment.enabled = False
    base = mammoth.evaluate(model, x)
    assert aligned > old_accuracy(base, y) + 0.05
    model.net.eval()
    assert torch.equal(base, model.net(x))
    assert not model.net.classifier._forward_pre_hooks


def test_evaluation_is_aligned_as_by_hand_and_training_is_untouched(mammoth, learn, digits):
    class Nothing:
        pass

    model, plain = learn(mammoth.Sgd, gate=elign.ByPrediction), learn(mammoth.Sgd, mixin=Nothing)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert list(model.state_dict()) == list(plain.state_dict())
    x, _ = digits.test
    base = mammoth.evaluate(plain, x)
    with elign.attach(plain.net, "classifier", model.alignment.aligner, gate=elign.ByPrediction(5)):
        expected = mammoth.evaluate(plain, x)
    assert torch.equal(mammoth.evaluate(model, x), expected)
    assert not torch.equal(expected, base)
    taken_for_new = base.argmax(dim=1) >= 5
    assert torch.equal(expected[taken_for_new], base[taken_for_new])


def test_only_data_of_the_current_task_is_used(mammoth, learn, digits):
    model = learn(mammoth.Rehearsal)
    assert model.kept is not None
    assert model.alignment.aligner.report.rows == len(digits.of(range(5, 10))[0])


def test_the_copy_that_a_model_keeps_of_its_network_does_not_align(mammoth, learn, digits):
    model = learn(mammoth.Rehearsal)
    mammoth.evaluate(model, digits.test[0])
    assert not model.old_net.classifier._forward_pre_hooks
    assert not copy.deepcopy(model.net).classifier._forward_pre_hooks


def test_a_model_that_was_stored_between_tasks_goes_on(mammoth, learn, digits, new_net, tmp_path):
    whole = learn(mammoth.Sgd)
    first = learn(mammoth.Sgd, tasks=(0,))
    torch.save({"model": first.state_dict(), "eli": first.alignment.state_dict()}, tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    second = type(first)(new_net())
    second.load_state_dict(stored["model"])
    second.alignment.load_state_dict(stored["eli"])
    second.opt.load_state_dict(first.opt.state_dict())
    second._current_task = 1
    torch.manual_seed(1)
    mammoth.train(second, mammoth.ContinualDataset(digits), 1)
    x, _ = digits.test
    assert torch.equal(mammoth.evaluate(second, x), mammoth.evaluate(whole, x))


def test_the_default_aligner_is_eli_under_a_label_free_gate(mammoth, new_net):
    class Model(ELIMixin, mammoth.Sgd):
        pass

    alignment = Model(new_net()).alignment
    assert isinstance(alignment.aligner, elign.EnergyAligner)
    assert alignment.gate is elign.ByPrediction
