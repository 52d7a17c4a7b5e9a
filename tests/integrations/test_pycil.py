"""The mixin for PyCIL on a stand-in of it (`pycil_stand_in.py`), trained for real on digits."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import elign
from elign.integrations import TaskRepair
from elign.integrations.pycil import RepairMixin


@pytest.fixture(scope="module")
def pycil(stand_in):
    return stand_in("pycil_stand_in")


def with_repair(base, what=None, **options):
    class WithRepair(RepairMixin, base):
        def make_repair(self):
            return TaskRepair("fc", what and what(), **options)

    return WithRepair


def learn(learner, manager, tasks=2):
    """What PyCIL's trainer does; the accuracies of `eval_task`."""
    accuracies = []
    for task in range(tasks):
        learner.incremental_train(manager)
        accuracies.append(learner.eval_task()[0])
        if task < tasks - 1:
            learner.after_task()
    return accuracies


def accuracies(learner):
    """Of old and of new test images."""
    predicted, labels = learner._eval_cnn(learner.test_loader)
    right = predicted[:, 0] == labels
    return right[labels < 5].mean(), right[labels >= 5].mean()


def test_old_classes_are_won_back_and_the_base_comes_back(pycil, digits):
    learner, manager = with_repair(pycil.Finetune)({"seed": 0}), pycil.DataManager(digits)
    learn(learner, manager)
    repaired = accuracies(learner)
    learner.task_repair.enabled = False
    base = accuracies(learner)
    assert sum(repaired) > sum(base) + 0.1
    assert min(repaired) > 0.85  # over four seeds: 0.90 and more
    assert not learner._network.fc._forward_hooks
    assert learner.task_repair.statistics.classes.tolist() == list(range(10))


@pytest.mark.parametrize("what", [None, elign.Gaussian, elign.Ridge])
def test_evaluation_is_repaired_as_by_hand_and_training_is_untouched(pycil, digits, what):
    learner = with_repair(pycil.Finetune, what)({"seed": 0})
    first, second = learn(learner, pycil.DataManager(digits))
    plain = pycil.Finetune({"seed": 0})
    assert first == learn(plain, pycil.DataManager(digits))[0]
    for name, tensor in plain._network.state_dict().items():
        assert torch.equal(tensor, learner._network.state_dict()[name]), name
    predicted, labels = learner._eval_cnn(learner.test_loader)
    gate = elign.ByPrediction(5) if what is elign.Ridge else None
    with elign.attach(plain._network, "fc", learner.task_repair.fitted, gate=gate):
        expected, _ = plain._eval_cnn(plain.test_loader)
    assert (predicted == expected).all()
    assert (predicted != plain._eval_cnn(plain.test_loader)[0]).any()
    assert second == 100 * (predicted[:, 0] == labels).mean()


@pytest.mark.parametrize("learner", ["Finetune", "ReplayOfExemplars"])
def test_only_data_of_the_current_task_is_used(pycil, digits, learner):
    learner = with_repair(getattr(pycil, learner), elign.Ridge)({"seed": 0})
    manager = pycil.DataManager(digits)
    learn(learner, manager)
    asked = [request for request in manager.asked if request[:2] == ("train", "test")]
    assert asked == [("train", "test", [0, 1, 2, 3, 4], False), ("train", "test", [5, 6, 7, 8, 9], False)]
    assert learner.task_repair.report.rows == len(digits.of(range(5, 10))[0])


def test_exemplars_can_be_handed_over(pycil, digits):
    class Learner(with_repair(pycil.ReplayOfExemplars, elign.Gaussian, statistics=False)):
        def repair_exemplars(self, data_manager):
            return None if self.memory is None else DataLoader(pycil.Indexed(*self.memory), batch_size=64)

    learner = Learner({"seed": 0})
    accuracy = learn(learner, pycil.DataManager(digits))[1]
    assert learner.task_repair.statistics is None
    assert accuracy > 70


def test_the_previous_network_is_the_one_that_pycil_keeps(pycil, digits):
    learner = with_repair(pycil.ReplayOfExemplars, elign.MeanShift)({"seed": 0})
    learn(learner, pycil.DataManager(digits))
    x, _ = digits.of(range(5, 10))
    with torch.no_grad():
        kept, current = learner._old_network.extract_vector(x), learner._network.extract_vector(x)
    assert learner.task_repair.report.drift_before == pytest.approx((current - kept).norm(dim=1).mean().item())


def test_three_tasks_keep_the_statistics_of_all_classes(pycil, digits):
    learner, manager = with_repair(pycil.Finetune)({"seed": 0}), pycil.DataManager(digits, increments=(4, 3, 3))
    repaired = learn(learner, manager, tasks=3)
    assert learner.task_repair.statistics.classes.tolist() == list(range(10))
    plain = learn(pycil.Finetune({"seed": 0}), pycil.DataManager(digits, increments=(4, 3, 3)), tasks=3)
    assert repaired[2] > plain[2] + 5
