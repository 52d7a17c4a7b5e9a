"""What the adapters share: when there is an aligner, what it learns from, how it is chosen and stored."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elign
from elign.integrations import MissingLibraryError, TaskAlignment


@pytest.fixture
def drifted(new_net, digits):
    """A network, the same after its latents drifted, and data."""
    before, after = new_net().eval(), new_net().eval()
    with torch.no_grad():
        after.body[0].weight += 0.1 * torch.randn_like(after.body[0].weight)
    return before, after, digits.test[0][:100]


def learned(alignment, before, after, x, known=5):
    """The alignment after a task that changed `before` to `after`."""
    alignment.begin(before, known)
    alignment.end(after, x.split(32))
    return alignment


def test_latents_are_aligned_as_by_hand(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.Ridge()), before, after, x)
    by_hand = elign.Ridge().fit(before.body, after.body, x.split(32))
    with elign.attach(after, "classifier", by_hand, gate=elign.ByPrediction(5)):
        expected = after(x)
    assert not torch.equal(expected, after(x))
    with alignment.attached(after):
        assert torch.equal(after(x), expected)
    alignment.enabled = False
    with alignment.attached(after):
        assert torch.equal(after(x), after.classifier(after.body(x)))


def test_the_first_task_has_nothing_to_align(drifted):
    before, after, x = drifted
    for known in (0, []):
        alignment = learned(TaskAlignment("classifier"), before, after, x, known=known)
        assert not alignment.ready
        with alignment.attached(after):
            assert not after.classifier._forward_pre_hooks


def test_nothing_is_aligned_while_a_task_is_learned(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.MeanShift()), before, after, x)
    alignment.attach(after)
    alignment.begin(after, 7)
    assert not alignment.ready
    assert not after.classifier._forward_pre_hooks
    alignment.attach(after)
    assert not after.classifier._forward_pre_hooks


def test_the_model_is_copied_before_the_task_changes_it(drifted):
    model, after, x = drifted
    alignment = TaskAlignment("classifier", aligner=elign.MeanShift())
    alignment.begin(model, 5)
    expected = elign.MeanShift().fit(copy.deepcopy(model).body, after.body, [x]).report
    model.load_state_dict(after.state_dict())
    alignment.end(model, [x])
    assert alignment.aligner.report.drift_before == pytest.approx(expected.drift_before)
    assert alignment.previous is None


def test_gates_are_made_from_the_old_classes_of_each_task(drifted):
    before, after, x = drifted
    alignment = TaskAlignment(
        "classifier", aligner=elign.MeanShift(), gate=functools.partial(elign.ByPrediction, soft=True)
    )
    for known in ([0, 2], [0, 2, 4]):
        learned(alignment, before, after, x, known=known)
        assert alignment._chosen.config() == {"known": known, "soft": True}


def test_an_energy_gate_is_calibrated_on_the_tasks_latents(drifted):
    before, after, x = drifted
    gate = elign.ByEnergy(quantile=0.25)
    aligner = elign.EnergyAligner(iterations=20)
    learned(TaskAlignment("classifier", aligner=aligner, gate=gate), before, after, x)
    assert gate(after.body(x), aligner=aligner).float().mean().item() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    "gate", [elign.ByPrediction, elign.ByEnergy(), elign.Always()], ids=["prediction", "energy", "always"]
)
def test_what_was_learned_can_be_stored(drifted, gate, tmp_path):
    before, after, x = drifted
    first = learned(
        TaskAlignment("classifier", aligner=elign.EnergyAligner(iterations=20), gate=gate), before, after, x
    )
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = TaskAlignment("classifier", aligner=elign.EnergyAligner(), gate=copy.deepcopy(gate))
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    with first.attached(after):
        expected = after(x)
    with second.attached(after):
        assert torch.equal(after(x), expected)


def test_a_task_that_goes_on_has_the_model_from_before_it(drifted):
    before, after, x = drifted
    first = TaskAlignment("classifier", aligner=elign.MeanShift())
    first.begin(before, 5)
    state = copy.deepcopy(first.state_dict())
    for resumed, drift in ((True, True), (False, False)):
        second = TaskAlignment("classifier", aligner=elign.MeanShift())
        second.load_state_dict(state)
        assert second.state_dict()["previous"].keys() == before.state_dict().keys()
        second.begin(after, 5, resumed=resumed)
        second.end(after, [x])
        assert (second.aligner.report.drift_before > 0.1) is drift


def test_an_attached_model_can_be_pickled_with_its_alignment(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.MeanShift()), before, after, x)
    plain = after(x)
    alignment.attach(after)
    model, copied = pickle.loads(pickle.dumps((after, alignment)))
    assert torch.equal(model(x), after(x))
    copied.detach()
    assert torch.equal(model(x), plain)
    assert not torch.equal(after(x), plain)


def test_blocks_of_one_model_may_lie_in_each_other(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.MeanShift()), before, after, x)
    plain = after(x)
    with alignment.attached(after):
        aligned = after(x)
        with alignment.attached(after):
            assert torch.equal(after(x), aligned)
        assert torch.equal(after(x), aligned)
        elign.detach(after)
        with alignment.attached(after):
            assert torch.equal(after(x), aligned)
    assert torch.equal(after(x), plain)


def test_it_aligns_one_model_at_a_time(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.MeanShift()), before, after, x)
    other = copy.deepcopy(after)
    alignment.attach(after)
    alignment.attach(other)
    assert elign.detach(after) == 0
    alignment.enabled = False
    assert alignment.attach(other) is None
    assert elign.detach(other) == 0


def test_an_error_within_the_block_leaves_the_model_as_it_was(drifted):
    before, after, x = drifted
    alignment = learned(TaskAlignment("classifier", aligner=elign.MeanShift()), before, after, x)
    with pytest.raises(KeyError), alignment.attached(after):
        raise KeyError
    assert not after.classifier._forward_pre_hooks


@pytest.mark.parametrize(("library", "package"), [("avalanche", "avalanche-lib"), ("lightning", "lightning")])
def test_a_missing_library_is_named(library, package, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith((f"{library}.", f"elign.integrations.{library}"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingLibraryError, match=f"needs {library.title()}: pip install {package}") as caught:
        __import__(f"elign.integrations.{library}")
    assert isinstance(caught.value, ImportError | elign.ElignError)


@pytest.mark.parametrize(
    "path", sorted(Path(elign.__file__).parent.glob("integrations/*.py")), ids=lambda path: path.name
)
def test_no_adapter_imports_the_bench(path):
    assert "elign.lab" not in path.read_text(encoding="utf-8")


def test_the_package_imports_no_framework_and_nothing_of_the_bench():
    names = ["avalanche", "lightning", "torchvision", "elign.lab", "elign.integrations.avalanche"]
    code = "import sys, elign.integrations, elign.integrations.pycil, elign.integrations.mammoth; "
    code += f"print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
