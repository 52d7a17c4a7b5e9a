"""What the adapters share: when there is a repair, what it is fitted on, how statistics are kept and stored."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import pytest
import torch
from torch import nn

import elign
from elign.integrations import MissingLibraryError, TaskRepair, load_repaired

# Some repairs are fitted on a network that drifted at random: they rightly warn.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

KINDS = {
    "repair": lambda: elign.Repair(force=True),
    "gaussian": elign.Gaussian,
    "nearest mean": elign.NearestMean,
    "weights": elign.WeightAligned,
    "aligner": elign.Ridge,
}


class Case:
    """A network before and after a task that changed it at random, and data of both tasks."""

    def __init__(self, new_net, digits) -> None:
        self.before, self.after = new_net().eval(), new_net().eval()
        with torch.no_grad():
            self.after.body[0].weight += 0.1 * torch.randn_like(self.after.body[0].weight)
        self.old, self.new = (self.batches(digits.of(classes)) for classes in (range(5), range(5, 10)))
        self.x, self.y = digits.test[0][:100], digits.test[1][:100]
        self.statistics = elign.ClassStatistics.from_data(self.before, "classifier", self.old)

    @staticmethod
    def batches(data, size=64):
        return list(zip(*(side.split(size) for side in data), strict=True))

    def learned(self, *args, **options):
        """Return a TaskRepair after both tasks."""
        made = TaskRepair("classifier", *args, **options)
        made.begin(self.before)
        made.end(self.before, self.old)
        assert made.fitted is None
        return self.second(made)

    def second(self, made, **options):
        """Return a TaskRepair after the second task."""
        made.begin(self.before)
        made.end(self.after, self.new, **options)
        return made


@pytest.fixture
def case(new_net, digits):
    return Case(new_net, digits)


def test_the_default_is_a_repair_as_by_hand(case):
    made = case.learned()
    by_hand = elign.Repair("classifier").fit(case.before, case.after, case.new, statistics=case.statistics)
    assert isinstance(made.fitted, elign.Repair)
    assert made.report.to_dict()["estimates"] == by_hand.report.to_dict()["estimates"]
    with by_hand.attach(case.after):
        expected = case.after(case.x)
    with made.attached(case.after):
        torch.testing.assert_close(case.after(case.x), expected)
    torch.testing.assert_close(made.statistics.means, by_hand.statistics.means)
    made.enabled = False
    with made.attached(case.after):
        assert torch.equal(case.after(case.x), case.after.classifier(case.after.body(case.x)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_fitted_and_keeps_the_statistics_of_all_classes(case, kind):
    made = case.learned(KINDS[kind]())
    assert made.statistics.classes.tolist() == made.learned_classes == list(range(10))
    z, y = case.after.body(torch.cat([x for x, _ in case.new])), torch.cat([y for _, y in case.new])
    torch.testing.assert_close(made.statistics.means[5:], torch.stack([z[y == k].mean(dim=0) for k in range(5, 10)]))
    plain = case.after(case.x)
    with made.attached(case.after):
        assert case.after(case.x).shape == plain.shape
        assert not torch.equal(case.after(case.x), plain)
    assert torch.equal(case.after(case.x), plain)


def test_statistics_of_old_classes_follow_the_drift(case):
    z = case.after.body(torch.cat([x for x, _ in case.old]))
    y = torch.cat([y for _, y in case.old])
    true = torch.stack([z[y == k].mean(dim=0) for k in range(5)])
    still = (case.statistics.means - true).norm(dim=1).mean()
    for what in (elign.Repair(), elign.Gaussian(), elign.Ridge()):
        moved = (case.learned(what).statistics.means[:5] - true).norm(dim=1).mean()
        assert moved < 0.7 * still


def test_a_classifier_is_fitted_on_moved_statistics_and_new_latents(case):
    made = case.learned(elign.Gaussian())
    forward = elign.Ridge().fit(case.before.body, case.after.body, case.new, direction="forward")
    z, y = case.after.body(torch.cat([x for x, _ in case.new])), torch.cat([y for _, y in case.new])
    by_hand = elign.Gaussian().fit(forward.transport(case.statistics), z.detach(), y, classes=10)
    latents = case.after.body(case.x)
    torch.testing.assert_close(made.fitted(latents), by_hand(latents), rtol=1e-3, atol=1e-3)


def test_an_aligner_aligns_as_by_hand_and_needs_no_labels(case):
    unlabelled = [x for x, _ in case.new]
    made = TaskRepair("classifier", elign.Ridge(), statistics=False, old_classes=5)
    made.begin(case.before)
    made.end(case.after, unlabelled)
    assert made.statistics is None
    by_hand = elign.Ridge().fit(case.before.body, case.after.body, unlabelled)
    with elign.attach(case.after, "classifier", by_hand, gate=elign.ByPrediction(5)):
        expected = case.after(case.x)
    for one in (made, case.learned(elign.Ridge())):
        with one.attached(case.after):
            torch.testing.assert_close(case.after(case.x), expected)


def test_exemplars_are_used_and_those_of_new_classes_are_not(case):
    exemplars = [(x[::8], y[::8]) for x, y in case.old]
    by_hand = elign.Repair("classifier").fit(
        case.before, case.after, case.new, statistics=case.statistics, exemplars=exemplars
    )
    for given in (exemplars, [*exemplars, case.new[0]]):
        made = case.second(TaskRepair("classifier", statistics=case.statistics), exemplars=given)
        torch.testing.assert_close(made.statistics.means, by_hand.statistics.means)
        assert not torch.allclose(made.statistics.means, case.learned().statistics.means)


def test_exemplars_alone_are_enough_for_a_classifier_and_nothing_is_not(case):
    made = TaskRepair("classifier", elign.Gaussian(), old_classes=5)
    made.begin(case.before)
    with pytest.raises(elign.LatentError, match="nothing is known of the old classes"):
        made.end(case.after, case.new)
    made.end(case.after, case.new, exemplars=case.old)
    assert made.statistics.classes.tolist() == list(range(10))


def test_without_statistics_and_exemplars_a_repair_aligns_weights(case):
    made = case.second(TaskRepair("classifier", old_classes=5))
    assert made.fitted.mode == "weights"
    made.begin(case.after)
    made.end(case.after, case.old)
    assert made.fitted.mode != "weights", "the next fit depends on the last one"


@pytest.mark.parametrize(
    ("order", "boundaries"), [([[0, 1], [2, 3], [4, 5]], [2, 4]), ([[2, 3], [0, 1], [4, 5]], None)]
)
def test_each_task_has_an_offset_if_its_classes_are_in_order(case, digits, order, boundaries, monkeypatch):
    seen = []
    fit = elign.Repair.fit_latents

    def note(self, *args, **options):
        seen.append(options["task_boundaries"])
        return fit(self, *args, **options)

    monkeypatch.setattr(elign.Repair, "fit_latents", note)
    made = TaskRepair("classifier")
    for classes in order:
        made.begin(case.before)
        made.end(case.after, case.batches(digits.of(classes)))
    assert seen[-1] == boundaries


def test_nothing_is_attached_while_a_task_is_learned(case):
    made = case.learned(elign.MeanShift())
    made.attach(case.after)
    made.begin(case.after)
    assert made.fitted is None
    for _ in range(2):
        assert not case.after.classifier._forward_pre_hooks
        made.attach(case.after)


def test_the_model_is_copied_before_the_task_changes_it(case):
    made = TaskRepair("classifier", elign.MeanShift(), old_classes=5)
    made.begin(case.before)
    expected = elign.MeanShift().fit(copy.deepcopy(case.before).body, case.after.body, case.new).report
    case.before.load_state_dict(case.after.state_dict())
    made.end(case.before, case.new)
    assert made.report.drift_before == pytest.approx(expected.drift_before)
    assert made.previous is None


def test_gates_are_made_from_the_old_classes_of_each_task(case):
    made = TaskRepair("classifier", elign.MeanShift(), gate=functools.partial(elign.ByPrediction, soft=True))
    for old in ([0, 2], [0, 2, 4]):
        made.begin(case.before, old)
        made.end(case.after, case.new)
        gate = made.attach(case.after).gate
        assert (gate.old_classes, gate.soft) == (old, True)


def test_gates_that_learn_are_fitted(case):
    aligner = elign.EnergyAligner(iterations=20)
    made = case.learned(aligner, gate=elign.ByEnergy(quantile=0.25))
    z = case.after.body(torch.cat([x for x, _ in case.new]))
    gate = made.attach(case.after).gate
    assert gate(z, aligner=made.fitted).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert 0 <= case.learned(elign.Ridge(), gate=elign.FixedStrength()).attach(case.after).gate.strength <= 1
    with pytest.raises(elign.OptionError, match="ByProbe needs exemplars"):
        case.learned(elign.Ridge(), gate=elign.ByProbe())


@pytest.mark.parametrize("kind", [*KINDS, "without memory", "energy gate", "fixed strength"])
def test_what_was_learned_can_be_stored(case, kind, tmp_path):
    energy = lambda: elign.EnergyAligner(iterations=20)  # noqa: E731
    options = {"energy gate": {"gate": elign.ByEnergy()}, "fixed strength": {"gate": elign.FixedStrength()}}
    what, options = (KINDS | {"without memory": elign.Repair}).get(kind, energy), options.get(kind, {})
    first = case.learned(what(), **options)
    if kind == "without memory":
        first = case.second(TaskRepair("classifier", old_classes=5))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = TaskRepair("classifier", what(), **options)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(second.statistics.means, first.statistics.means)
    assert second.learned_classes == first.learned_classes
    first.save(tmp_path)
    with first.attached(case.after):
        expected = case.after(case.x)
    with second.attached(case.after):
        assert torch.equal(case.after(case.x), expected)
    with load_repaired(case.after, tmp_path, head="classifier"):
        assert torch.equal(case.after(case.x), expected)
    assert torch.equal(elign.ClassStatistics.load(tmp_path / "statistics.safetensors").means, first.statistics.means)


def test_files_of_an_earlier_task_are_removed(case, tmp_path):
    case.learned(elign.Ridge()).save(tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == ["gate", "repair", "statistics"]
    with pytest.raises(elign.AttachError, match="does not know its head"):
        load_repaired(case.after, tmp_path)
    made = TaskRepair("classifier")
    made.begin(case.before)
    made.end(case.before, case.old)
    made.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["statistics.safetensors"]
    with pytest.raises(FileNotFoundError):
        load_repaired(case.after, tmp_path)


def test_a_task_that_is_resumed_has_the_model_from_before_it(case):
    first = TaskRepair("classifier", statistics=case.statistics)
    first.begin(case.before)
    state = copy.deepcopy(first.state_dict())
    for resumed, drift in ((True, True), (False, False)):
        second = TaskRepair("classifier")
        second.load_state_dict(state)
        assert second.state_dict()["previous"].keys() == case.before.state_dict().keys()
        second.begin(case.after, resumed=resumed)
        second.end(case.after, case.new)
        assert (second.report.drift > 0.1) is drift


def test_an_attached_model_can_be_pickled_with_its_repair(case):
    made = case.learned(elign.Repair(force=True))
    plain = case.after(case.x)
    made.attach(case.after)
    model, copied = pickle.loads(pickle.dumps((case.after, made)))
    torch.testing.assert_close(model(case.x), case.after(case.x))
    copied.detach()
    assert torch.equal(model(case.x), plain)
    assert not torch.equal(case.after(case.x), plain)


def test_blocks_of_one_model_can_be_nested(case):
    made = case.learned(elign.MeanShift())
    plain = case.after(case.x)
    with made.attached(case.after):
        aligned = case.after(case.x)
        with made.attached(case.after):
            assert torch.equal(case.after(case.x), aligned)
        assert torch.equal(case.after(case.x), aligned)
        elign.detach(case.after)
        with made.attached(case.after):
            assert torch.equal(case.after(case.x), aligned)
    assert torch.equal(case.after(case.x), plain)


def test_it_is_attached_to_one_model_at_a_time(case):
    made = case.learned()
    other = copy.deepcopy(case.after)
    made.attach(case.after)
    made.attach(other)
    assert elign.detach(case.after) == 0
    made.enabled = False
    assert made.attach(other) is None
    assert elign.detach(other) == 0


def test_an_error_within_the_block_leaves_the_model_unchanged(case):
    made = case.learned()
    with pytest.raises(KeyError), made.attached(case.after):
        raise KeyError
    assert not case.after.classifier._forward_pre_hooks


@pytest.mark.parametrize(
    ("what", "options", "match"),
    [
        (nn.Linear(2, 2), {}, "not a Linear"),
        (elign.Repair("fc"), {}, "for the head 'fc'"),
        (elign.Gaussian(), {"gate": elign.Always()}, "has no use for it"),
        (elign.Voting([elign.HeadLogits(), elign.HeadLogits()], task_boundaries=5), {}, "fitted already"),
    ],
)
def test_what_does_not_go_together_is_refused(what, options, match):
    with pytest.raises(elign.OptionError, match=match):
        TaskRepair("classifier", what, **options)


@pytest.mark.parametrize(
    ("library", "name", "package"),
    [
        ("avalanche", "Avalanche", "avalanche-lib"),
        ("lightning", "Lightning", "lightning"),
        ("transformers", "transformers", "transformers"),
    ],
)
def test_a_missing_library_is_named(library, name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for module in [key for key in sys.modules if key.startswith((f"{library}.", f"elign.integrations.{library}"))]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingLibraryError, match=f"needs {name}: pip install {package}") as caught:
        __import__(f"elign.integrations.{library}")
    assert isinstance(caught.value, ImportError | elign.ElignError)


def test_bic_takes_exemplars_and_says_so_without(case):
    with pytest.raises(elign.LatentError, match="exemplars"):
        case.learned(elign.BiC())
    made = TaskRepair("classifier", elign.BiC())
    made.begin(case.before)
    made.end(case.before, case.old)
    made = case.second(made, exemplars=case.old)
    assert made.fitted.factors[:5].tolist() == [1.0] * 5
    assert made.fitted.factors[5] == made.fitted.factors[9] != 1.0
