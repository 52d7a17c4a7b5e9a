"""The mixin for PyCIL on a stand-in of it (`pycil_stand_in.py`), trained for real on digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import elign
from elign.integrations import TaskAlignment
from elign.integrations.pycil import ELIMixin


@pytest.fixture(scope="module")
def pycil(stand_in):
    return stand_in("pycil_stand_in")


def with_eli(base, *, gate=elign.Always, aligner=elign.Ridge):
    class WithELI(ELIMixin, base):
        def make_alignment(self):
            return TaskAlignment("fc", aligner=aligner(), gate=gate())

    return WithELI


def learn(learner, manager, tasks=2):
    """What PyCIL's trainer does; the accuracies of `eval_task`."""
    accuracies = []
    for task in range(tasks):
        learner.incremental_train(manager)
        accuracies.append(learner.eval_task()[0])
        if task < tasks - 1:
            learner.after_task()
    return accuracies


def old_accuracy(learner, digits):
    """Of old test images among old classes, with whatever is attached."""
    x, y = digits.of(range(5), part="test")
    learner._network.eval()
    with torch.no_grad():
        return (learner._network(x)["logits"][:, :5].argmax(dim=1) == y).float().mean().item()


def test_old_classes_are_remembered_and_the_base_comes_back(pycil, digits):
    learner, manager = with_eli(pycil.Finetune)({"seed": 0}), pycil.DataManager(digits)
    learn(learner, manager)
    base = old_accuracy(learner, digits)
    with learner.alignment.attached(learner._network):
        aligned = old_accuracy(learner, digits)
    assert aligned > base + 0.05
    assert old_accuracy(learner, digits) == base
    assert not learner._network.fc._forward_pre_hooks


def test_evaluation_is_aligned_as_by_hand_and_training_is_untouched(pycil, digits):
    learner = with_eli(pycil.Finetune, gate=lambda: elign.ByPrediction)({"seed": 0})
    first, second = learn(learner, pycil.DataManager(digits))
    plain = pycil.Finetune({"seed": 0})
    assert first == learn(plain, pycil.DataManager(digits))[0]
    for name, tensor in plain._network.state_dict().items():
        assert torch.equal(tensor, learner._network.state_dict()[name]), name
    predicted, labels = learner._eval_cnn(learner.test_loader)
    with elign.attach(plain._network, "fc", learner.alignment.aligner, gate=elign.ByPrediction(5)):
        expected, _ = plain._eval_cnn(plain.test_loader)
    assert (predicted == expected).all()
    assert (predicted != plain._eval_cnn(plain.test_loader)[0]).any()
    assert second == 100 * (predicted[:, 0] == labels).mean()


@pytest.mark.parametrize("learner", ["Finetune", "ReplayOfExemplars"])
def test_only_data_of_the_current_task_is_used(pycil, digits, learner):
    learner, manager = with_eli(getattr(pycil, learner))({"seed": 0}), pycil.DataManager(digits)
    learn(learner, manager)
    asked = [request for request in manager.asked if request[:2] == ("train", "test")]
    assert asked == [("train", "test", [0, 1, 2, 3, 4], False), ("train", "test", [5, 6, 7, 8, 9], False)]
    assert learner.alignment.aligner.report.rows == len(digits.of(range(5, 10))[0])


def test_the_previous_network_is_the_one_that_pycil_keeps(pycil, digits):
    learner, manager = (
        with_eli(pycil.ReplayOfExemplars, aligner=elign.MeanShift)({"seed": 0}),
        pycil.DataManager(digits),
    )
    learn(learner, manager)
    x, _ = digits.of(range(5, 10))
    with torch.no_grad():
        kept, current = learner._old_network.extract_vector(x), learner._network.extract_vector(x)
    assert learner.alignment.aligner.report.drift_before == pytest.approx((current - kept).norm(dim=1).mean().item())


def test_what_was_learned_goes_into_another_process(pycil, digits, tmp_path):
    first, manager = with_eli(pycil.Finetune)({"seed": 0}), pycil.DataManager(digits)
    learn(first, manager)
    state = {"network": first._network.state_dict(), "eli": first.alignment.state_dict()}
    torch.save(state, tmp_path / "learner.pt")
    second, stored = with_eli(pycil.Finetune)({"seed": 1}), torch.load(tmp_path / "learner.pt", weights_only=True)
    second._network.update_fc(10)
    second._network.load_state_dict(stored["network"])
    second.alignment.load_state_dict(stored["eli"])
    np.testing.assert_array_equal(second._eval_cnn(first.test_loader)[0], first._eval_cnn(first.test_loader)[0])


def test_the_default_aligner_is_eli_under_a_label_free_gate(pycil):
    class WithELI(ELIMixin, pycil.Finetune):
        pass

    alignment = WithELI({"seed": 0}).alignment
    assert isinstance(alignment.aligner, elign.EnergyAligner)
    assert alignment.gate is elign.ByPrediction
