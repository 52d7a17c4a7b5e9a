"""No test label reaches a label-free reading; what does not fit together is refused; equal seeds give equal results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from elign import Aligner, EnergyAligner
from elign.lab.evaluation import evaluate
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.fitting import UntrainedEnergyAligner
from elign.lab.evaluation.spaces import read_head
from elign.lab.tensor_file import read_tensors, write_tensors


class Untouchable:
    """Stands where test labels would be: any use of it is an error."""

    def __getattribute__(self, name):
        raise AssertionError(f"test labels were used: {name}")

    def _refuse(self, *args):
        raise AssertionError("test labels were used")

    __getitem__ = __lt__ = __ge__ = __eq__ = __len__ = __iter__ = _refuse
    __hash__ = None


def arguments(run, task, **changes):
    """What `evaluate_task` was called with for task 2 or 3 of a run."""
    given = {
        "previous": run.latents[task - 2],
        "previous_head": run.heads[task - 2],
        "prototypes": run.evaluations[task - 2].prototypes,
        "task_sizes": (4, 2, 2)[:task],
        "settings": run.settings,
        "seed": 0,
    }
    return given | changes


@pytest.mark.parametrize("space", ["latent", "logits"])
def test_label_free_scores_do_not_depend_on_test_labels(run, logit_run, space, monkeypatch):
    """End to end: shuffled labels, over the border between old and new, change oracles and counts but no score."""
    which = run if space == "latent" else logit_run
    current = which.latents[2]
    order = torch.randperm(len(current.test_labels), generator=torch.Generator().manual_seed(1))
    shuffled = replace(current, test_labels=current.test_labels[order])
    old = shuffled.test_labels < 6
    previous = replace(which.latents[1], test_labels=shuffled.test_labels[old])

    captured: list = []
    count = evaluate.score

    def spy(reading, labels, **options):
        captured.append(reading)
        return count(reading, labels, **options)

    monkeypatch.setattr(evaluate, "score", spy)
    results = []
    for latents, before in ((current, which.latents[1]), (shuffled, previous)):
        captured.clear()
        evaluate.evaluate_task(latents, which.heads[2], **arguments(which, 3, previous=before))
        results.append({(reading.name, reading.classifier): reading for reading in captured})
    first, second = results
    assert first.keys() == second.keys()
    for name, reading in first.items():
        same = torch.equal(reading.scores, second[name].scores)
        assert same == reading.label_free, name


def test_the_unlabelled_half_never_touches_test_labels(run):
    latents = replace(run.latents[2], test_labels=Untouchable())
    space = evaluate.make_space("latent", run.heads[2], run.heads[1], known=6, seen=8)
    options = {"settings": run.settings, "seed": 0}
    aligners = evaluate._fit_backward(latents, space, **options)
    forward = evaluate._fit_forward(latents, space, **options)
    prototypes = evaluate._prototypes(latents, run.evaluations[1].prototypes, forward, space=space, seed=0)
    material = evaluate.Material.of(latents, space=space, aligners=aligners, seed=0)
    readings = [
        *evaluate.label_free_readings(material, quantile=0.05),
        *evaluate.forward_readings(latents.test, prototypes),
    ]
    assert len(readings) > 15
    assert all(reading.label_free for reading in readings)
    with pytest.raises(AssertionError, match="test labels were used"):
        evaluate._old_samples(latents, run.latents[1])


def test_after_the_split_there_are_no_test_labels(run):
    assert len(evaluate._without_test_labels(run.latents[2]).test_labels) == 0


def test_equal_seeds_give_equal_results_and_tasks_have_seeds_of_their_own(run, make_run):
    assert make_run().rows == run.rows
    other = make_run(seed=1)
    assert other.rows != run.rows
    assert run.evaluations[1].aligners["eli"].seed != run.evaluations[2].aligners["eli"].seed
    assert run.evaluations[1].aligners["eli"].seed != other.evaluations[1].aligners["eli"].seed


def test_noise_is_seeded_and_leaves_the_global_random_state_alone(run):
    given = arguments(run, 3, settings=replace(run.settings, noise=1.0))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = evaluate.evaluate_task(run.latents[2], run.heads[2], **given)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = evaluate.evaluate_task(run.latents[2], run.heads[2], **given)
    assert again.rows == first.rows
    assert all(torch.equal(again.prototypes[name], moved) for name, moved in first.prototypes.items())
    assert first.rows != run.evaluations[2].rows


def test_tests_of_two_tasks_must_be_the_same_samples(run):
    previous = run.latents[1]
    swapped = replace(previous, test_labels=previous.test_labels.flip(0))
    with pytest.raises(EvaluationError, match="labels differ"):
        evaluate.evaluate_task(run.latents[2], run.heads[2], **arguments(run, 3, previous=swapped))
    with pytest.raises(EvaluationError, match="neighbouring tasks"):
        evaluate.evaluate_task(run.latents[2], run.heads[2], **arguments(run, 3, previous=run.latents[0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"previous": None}, "needs the latents and the head of the task before"),
        ({"previous_head": None}, "needs the latents and the head of the task before"),
        ({"prototypes": {}}, "prototypes none, mean-shift, ridge, eli"),
        ({"task_sizes": (4, 4)}, "task_sizes"),
        ({"task_sizes": (8,)}, "task_sizes"),
    ],
)
def test_what_does_not_fit_together_is_refused(run, changes, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate.evaluate_task(run.latents[2], run.heads[2], **arguments(run, 3, **changes))


def test_heads_of_another_task_are_refused(run):
    with pytest.raises(EvaluationError, match="6 outputs, but 8 classes"):
        evaluate.evaluate_task(run.latents[2], run.heads[1], **arguments(run, 3))


def test_test_samples_of_every_task_and_of_no_other_are_needed(run):
    current, previous = run.latents[2], run.latents[1]
    keep, keep_before = current.test_labels >= 4, previous.test_labels >= 4
    some = replace(current, test=current.test[keep], test_labels=current.test_labels[keep])
    before = replace(previous, test=previous.test[keep_before], test_labels=previous.test_labels[keep_before])
    with pytest.raises(EvaluationError, match="no test sample of task 1"):
        evaluate.evaluate_task(some, run.heads[2], **arguments(run, 3, previous=before))
    strange = replace(current, test_labels=current.test_labels + 1)
    with pytest.raises(EvaluationError, match="class 8"):
        evaluate.evaluate_task(strange, run.heads[2], **arguments(run, 3))


def test_head_is_read_in_evaluation_mode_and_left_as_it_was():
    head = nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 5)).train()
    head[1].eval()
    z = torch.randn(20, 3)
    logits = read_head(head, z, classes=4)
    assert torch.allclose(logits, head[1](z)[:, :4])
    assert not logits.requires_grad
    assert (head.training, head[0].training, head[1].training) == (True, True, False)


def test_seconds_and_drift(run):
    last = run.evaluations[2]
    assert set(last.seconds) == {"fit", "readings"}
    assert all(value > 0 for value in last.seconds.values())
    assert set(last.drift) == {"base", "eli", "mean-shift", "ridge", "random-shift", "untrained"}
    old = run.latents[2].test_labels < 6
    z, z_prev = run.latents[2].test[old], run.latents[1].test
    moved = last.aligners["ridge"].align(z)
    assert last.drift["ridge"].distance == pytest.approx((moved - z_prev).norm(dim=1).mean().item(), rel=1e-4)
    assert last.drift["ridge"].moved == pytest.approx((moved - z).norm(dim=1).mean().item(), rel=1e-4)
    cosine = nn.functional.cosine_similarity(moved, z_prev).mean().item()
    assert last.drift["ridge"].cosine_distance == pytest.approx(1 - cosine, abs=1e-5)
    assert last.drift["base"].moved == 0


def test_aligners_can_be_saved_and_loaded(run, tmp_path):
    z = run.latents[2].test
    for name, aligner in run.evaluations[2].aligners.items():
        loaded = Aligner.load(aligner.save(tmp_path / f"{name}.safetensors"))
        assert torch.equal(loaded.align(z), aligner.align(z))
    assert isinstance(run.evaluations[2].aligners["untrained"], UntrainedEnergyAligner)


def test_prototypes_can_be_saved_and_loaded(run, tmp_path):
    for evaluation in run.evaluations:
        write_tensors(tmp_path / "prototypes", evaluation.prototypes)
        loaded, _ = read_tensors(tmp_path / "prototypes")
        assert loaded.keys() == evaluation.prototypes.keys()
        assert all(torch.equal(loaded[name], there) for name, there in evaluation.prototypes.items())


def test_untrained_keeps_the_precision_of_the_latents():
    z = torch.randn(10, 3, dtype=torch.float64)
    fitted = UntrainedEnergyAligner(hidden=(4,), seed=2).fit_latents(z, z)
    barely = EnergyAligner(hidden=(4,), seed=2, iterations=1, learning_rate=1e-15).fit_latents(z, z)
    assert torch.allclose(fitted.align(z), barely.align(z), atol=1e-9)


def test_no_choice_is_made_on_test_data(run, monkeypatch):
    """Half of the test samples give the same aligners, the same prototypes and, for each sample left, equal scores."""
    current, previous = run.latents[2], run.latents[1]
    keep = torch.arange(len(current.test)) % 2 == 0
    half = replace(current, test=current.test[keep], test_labels=current.test_labels[keep])
    kept_old = keep[current.test_labels < 6]
    before = replace(previous, test=previous.test[kept_old], test_labels=previous.test_labels[kept_old])
    captured: list = []
    count = evaluate.score

    def spy(reading, labels, **options):
        captured.append(reading)
        return count(reading, labels, **options)

    monkeypatch.setattr(evaluate, "score", spy)
    whole = evaluate.evaluate_task(current, run.heads[2], **arguments(run, 3))
    every = list(captured)
    captured.clear()
    part = evaluate.evaluate_task(half, run.heads[2], **arguments(run, 3, previous=before))
    for one, other in zip(every, captured, strict=True):
        assert one.name == other.name
        assert torch.allclose(one.scores[keep], other.scores, atol=1e-4), one.name
    for name, aligner in whole.aligners.items():
        state = part.aligners[name].state_dict()
        assert all(torch.equal(value, state[key]) for key, value in aligner.state_dict().items()), name
    assert all(torch.equal(part.prototypes[name], moved) for name, moved in whole.prototypes.items())
