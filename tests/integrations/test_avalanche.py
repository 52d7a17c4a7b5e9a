"""The plugin for Avalanche against Avalanche itself: its strategies, its evaluation, its checkpoints."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elign


@pytest.fixture(scope="module")
def benchmark(avalanche, digits):
    """Two experiences: digits 0 to 4, then 5 to 9."""
    from avalanche.benchmarks import nc_benchmark

    parts = []
    for x, y in (digits.train, digits.test):
        parts.append(TensorDataset(x, y))
        parts[-1].targets = y.tolist()
    return nc_benchmark(*parts, n_experiences=2, task_labels=False, shuffle=False, fixed_class_order=list(range(10)))


class Record:
    """A plugin that keeps what an evaluation sees."""

    def __init__(self) -> None:
        self.batches, self.attached = [], []

    def before_eval(self, strategy, **kwargs) -> None:
        self.batches = []

    def after_eval_iteration(self, strategy, **kwargs) -> None:
        self.batches.append((strategy.mb_x, strategy.mb_y, strategy.mb_output))
        self.attached.append(elign.detach(copy.deepcopy(strategy.model)) > 0)


@pytest.fixture
def make(avalanche, new_net):
    """Makes a strategy with the plugin and a record of its evaluations."""
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.models import IncrementalClassifier
    from avalanche.training import ICaRL, LwF, Naive, Replay
    from avalanche.training.plugins import EvaluationPlugin

    from elign.integrations.avalanche import RepairPlugin

    def run(name, what=None, *, epochs=2, exemplars=None, **options):
        net = new_net()
        if name == "growing":
            net.classifier = IncrementalClassifier(32, initial_out_features=2)
        head = "eval_classifier" if name == "ICaRL" else "classifier"
        plugin, record = RepairPlugin(head, what, exemplars=exemplars), Record()
        common = {"train_mb_size": 64, "train_epochs": epochs, "eval_mb_size": 128, "plugins": [plugin, record]}
        common["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        common |= {"evaluator": EvaluationPlugin(accuracy_metrics(stream=True)), **options}
        if name == "ICaRL":
            memory = {"memory_size": 50, "buffer_transform": None, "fixed_memory": True}
            strategy = ICaRL(feature_extractor=net.body, classifier=net.classifier, **memory, **common)
        elif name == "Replay":
            strategy = Replay(model=net, criterion=nn.CrossEntropyLoss(), mem_size=100, **common)
        elif name == "LwF":
            strategy = LwF(model=net, criterion=nn.CrossEntropyLoss(), alpha=1.0, temperature=2.0, **common)
        else:
            strategy = Naive(model=net, **common)
        return SimpleNamespace(strategy=strategy, plugin=plugin, record=record, head=head)

    return run


def evaluated(made, benchmark):
    """Test images, their labels and the outputs for them as Avalanche's evaluation sees them, and its accuracy."""
    metrics = made.strategy.eval(benchmark.test_stream) or made.strategy.evaluator.get_last_metrics()
    (accuracy,) = [value for name, value in metrics.items() if name.startswith("Top1_Acc_Stream")]
    return *(torch.cat(side) for side in zip(*made.record.batches, strict=True)), accuracy


def trained(made, benchmark):
    for experience in benchmark.train_stream:
        made.strategy.train(experience)
    return made


@pytest.mark.parametrize("name", ["Naive", "growing", "Replay", "LwF"])
@pytest.mark.parametrize(
    "what", [elign.Repair(), elign.Gaussian(), elign.Ridge()], ids=lambda what: type(what).__name__
)
def test_evaluations_are_repaired_as_by_hand(make, benchmark, digits, name, what):
    made = trained(make(name, what), benchmark)
    model, task_repair = made.strategy.model.eval(), made.plugin.task_repair
    assert task_repair.learned_classes == task_repair.statistics.classes.tolist() == list(range(10))
    counts = torch.bincount(digits.train[1])
    assert task_repair.statistics.counts[5:].tolist() == counts[5:].tolist(), "learned from replayed samples"
    x, labels, repaired, accuracy = evaluated(made, benchmark)
    assert accuracy == pytest.approx((repaired.argmax(dim=1) == labels).float().mean().item())
    gate = elign.ByPrediction(list(range(5))) if isinstance(what, elign.Aligner) else None
    with torch.no_grad():
        plain = model(x)
        with elign.attach(model, made.head, task_repair.fitted, gate=gate):
            expected = model(x)
    torch.testing.assert_close(repaired, expected)
    task_repair.enabled = False
    torch.testing.assert_close(evaluated(made, benchmark)[2], plain)
    assert torch.equal(model(x), plain)


def test_icarl_is_repaired_on_its_exemplars(make, benchmark, digits):
    def exemplars(strategy):
        kept = next(plugin for plugin in strategy.plugins if hasattr(plugin, "x_memory"))
        return [(x, torch.tensor(y)) for x, y in zip(kept.x_memory, kept.y_memory, strict=True)]

    made = trained(make("ICaRL", exemplars=exemplars), benchmark)
    task_repair = made.plugin.task_repair
    assert task_repair.statistics.classes.tolist() == list(range(10))
    _, labels, repaired, accuracy = evaluated(made, benchmark)
    task_repair.enabled = False
    assert accuracy >= evaluated(made, benchmark)[3] - 0.02
    assert repaired.shape == (len(labels), 10)


def test_icarl_compares_moved_latents_with_moved_means(make, benchmark, digits):
    made = trained(make("ICaRL", elign.Ridge()), benchmark)
    model, aligner = made.strategy.model.eval(), made.plugin.task_repair.fitted
    assert aligner.report.rows == len(digits.of(range(5, 10))[0])
    means = model.eval_classifier.class_means.clone()
    x, _, aligned, _ = evaluated(made, benchmark)
    assert torch.equal(model.eval_classifier.class_means, means)
    kept = next(plugin for plugin in made.strategy.plugins if hasattr(plugin, "x_memory"))
    with torch.no_grad():
        plain = model(x)
        z = F.normalize(aligner.align(model.feature_extractor(x), where=plain.argmax(dim=1) < 5))
        for exemplars, labels in zip(kept.x_memory, kept.y_memory, strict=True):
            if labels[0] < 5:
                moved = F.normalize(aligner.align(model.feature_extractor(exemplars)))
                means[labels[0]] = F.normalize(moved.mean(dim=0), dim=0)
    torch.testing.assert_close(aligned, -torch.cdist(z, means), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(aligned, plain, atol=1e-2)
    made.plugin.task_repair.enabled = False
    torch.testing.assert_close(evaluated(made, benchmark)[2], plain)


def test_old_classes_are_won_back(make, benchmark, won_back):
    made = trained(make("Naive", epochs=8), benchmark)
    _, labels, repaired, _ = evaluated(made, benchmark)
    made.plugin.task_repair.enabled = False
    # Over five seeds: 0.48 to 0.83.
    won_back(repaired, evaluated(made, benchmark)[2], labels, least=0.45)


@pytest.mark.parametrize(("every", "expected"), [(0, {False, True}), (1, {False})])
def test_a_model_that_is_being_trained_is_shown_without_the_repair(make, benchmark, every, expected):
    made = make("Naive", epochs=1, eval_every=every)
    made.strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream[0]])
    assert set(made.record.attached) == {False}
    made.record.attached.clear()
    made.strategy.train(benchmark.train_stream[1], eval_streams=[benchmark.test_stream[0]])
    assert set(made.record.attached) == expected
    assert made.record.attached[-1] is (every == 0)


def loaded(made, path):
    """Go on with a checkpoint, if there is one; how many experiences it has behind it."""
    from avalanche.checkpointing import maybe_load_checkpoint

    made.strategy, done = maybe_load_checkpoint(made.strategy, path)
    # What was loaded takes the place of the plugins that the strategy was made with.
    made.plugin = next(plugin for plugin in made.strategy.plugins if hasattr(plugin, "task_repair"))
    made.record = next(plugin for plugin in made.strategy.plugins if hasattr(plugin, "batches"))
    return done


@pytest.mark.parametrize("name", ["Replay", "ICaRL"])
def test_a_run_goes_on_from_a_checkpoint(make, benchmark, name, tmp_path):
    from avalanche.checkpointing import save_checkpoint

    results = []
    for _ in range(2):
        made = make(name)
        done = loaded(made, tmp_path / "first.pt")
        assert made.plugin.task_repair.learned_classes == list(range(5 * done))
        if not done:
            made.strategy.train(benchmark.train_stream[0])
            # dill cannot pickle this torch's optimizers, with or without the plugin.
            save_checkpoint(made.strategy, tmp_path / "first.pt", exclude=["optimizer"])
        made.strategy.optimizer = torch.optim.SGD(made.strategy.model.parameters(), lr=0.1)
        made.strategy.optimized_param_id = None
        torch.manual_seed(1)
        made.strategy.train(benchmark.train_stream[1])
        assert made.plugin.task_repair.fitted is not None
        results.append(evaluated(made, benchmark)[2])
    torch.testing.assert_close(*results)
    save_checkpoint(made.strategy, tmp_path / "second.pt", exclude=["optimizer"])
    made = make(name)
    assert loaded(made, tmp_path / "second.pt") == 2
    torch.testing.assert_close(evaluated(made, benchmark)[2], results[1])
