"""The mixin for mammoth on a stand-in of it (`mammoth_stand_in.py`), trained for real on digits."""

from __future__ import annotations

import copy

import pytest
import torch

import elign
from elign.integrations import TaskRepair
from elign.integrations.mammoth import RepairMixin


@pytest.fixture(scope="module")
def mammoth(stand_in):
    return stand_in("mammoth_stand_in")


@pytest.fixture
def learn(mammoth, digits, new_net):
    """Trains a model for two tasks."""

    def run(base, what=None, *, tasks=(0, 1), mixin=RepairMixin, **options):
        class Model(mixin, base):
            def make_repair(self):
                return TaskRepair("classifier", what, **options)

        torch.manual_seed(0)
        model, dataset = Model(new_net()), mammoth.ContinualDataset(digits)
        for task in tasks:
            torch.manual_seed(task)
            mammoth.train(model, dataset, task)
        return model

    return run


def accuracies(outputs, labels):
    """Of old and of new test images."""
    right = (outputs.argmax(dim=1) == labels).float()
    return right[labels < 5].mean().item(), right[labels >= 5].mean().item()


def test_old_classes_are_won_back_and_the_base_comes_back(mammoth, learn, digits):
    model = learn(mammoth.Sgd)
    x, y = digits.test
    repaired = accuracies(mammoth.evaluate(model, x), y)
    model.task_repair.enabled = False
    outputs = mammoth.evaluate(model, x)
    base = accuracies(outputs, y)
    assert sum(repaired) > sum(base) + 0.5
    assert min(repaired) > 0.8  # over four seeds: 0.86 and more
    model.net.eval()
    assert torch.equal(outputs, model.net(x))
    assert not model.net.classifier._forward_hooks


@pytest.mark.parametrize("what", [elign.Repair(), elign.NearestMean(), elign.Ridge()])
def test_evaluation_is_repaired_as_by_hand_and_training_is_untouched(mammoth, learn, digits, what):
    class Nothing:
        pass

    model, plain = learn(mammoth.Sgd, what), learn(mammoth.Sgd, mixin=Nothing)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert list(model.state_dict()) == list(plain.state_dict())
    x, _ = digits.test
    base = mammoth.evaluate(plain, x)
    gate = elign.ByPrediction(5) if isinstance(what, elign.Aligner) else None
    with elign.attach(plain.net, "classifier", model.task_repair.fitted, gate=gate):
        expected = mammoth.evaluate(plain, x)
    assert torch.equal(mammoth.evaluate(model, x), expected)
    assert not torch.equal(expected, base)


def test_only_data_of_the_current_task_is_used(mammoth, learn, digits):
    model = learn(mammoth.Rehearsal, elign.Ridge())
    assert model.kept is not None
    assert model.task_repair.report.rows == len(digits.of(range(5, 10))[0])


def test_the_copy_that_a_model_keeps_of_its_network_is_not_repaired(mammoth, learn, digits):
    model = learn(mammoth.Rehearsal)
    mammoth.evaluate(model, digits.test[0])
    assert not model.old_net.classifier._forward_hooks
    assert not copy.deepcopy(model.net).classifier._forward_hooks


def test_a_model_that_was_stored_between_tasks_goes_on(mammoth, learn, digits, new_net, tmp_path):
    whole = learn(mammoth.Sgd)
    first = learn(mammoth.Sgd, tasks=(0,))
    torch.save({"model": first.state_dict(), "repair": first.task_repair.state_dict()}, tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    second = type(first)(new_net())
    second.load_state_dict(stored["model"])
    second.task_repair.load_state_dict(stored["repair"])
    second.opt.load_state_dict(first.opt.state_dict())
    second._current_task = 1
    torch.manual_seed(1)
    mammoth.train(second, mammoth.ContinualDataset(digits), 1)
    x, _ = digits.test
    assert torch.equal(mammoth.evaluate(second, x), mammoth.evaluate(whole, x))
