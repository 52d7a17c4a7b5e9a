"""No test label reaches a label-free method; what does not fit together is refused; equal seeds give equal results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
import torch
from tests.lab.evaluation.conftest import QUICK, arguments, inputs_of
from torch import Tensor, nn

from elign import Aligner, ByProbe, MeanShift
from elign.lab.evaluation import task_evaluation as evaluate
from elign.lab.evaluation.features import TaskLatents
from elign.lab.evaluation.inputs import EvaluationError, read_head
from elign.lab.evaluation.methods import METHODS, OldSamples, method
from elign.lab.evaluation.task_evaluation import evaluate_task, read_statistics
from elign.lab.models.classifier import LinearHead
from elign.lab.storage import DamagedRunError, read_tensors, write_tensors
from elign.utils.errors import OptionError


@pytest.fixture
def predictions(monkeypatch):
    """Predictions by method and classifier, in a list of dictionaries: one for each call of the returned function."""
    captured: dict = {}
    count = evaluate.score

    def spy(method, prediction, labels, **options):
        captured[method.name, prediction.classifier] = prediction
        return count(method, prediction, labels, **options)

    def of(*args, **options):
        captured.clear()
        evaluate_task(*args, **options)
        return dict(captured)

    monkeypatch.setattr(evaluate, "score", spy)
    return of


def reachable(thing, seen=None):
    """All tensors that can be reached from an object: through attributes, containers, closures and partials."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | int | float | bytes | None):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from reachable(value, seen)
    elif isinstance(thing, list | tuple | set):
        for value in thing:
            yield from reachable(value, seen)
    else:
        for cell in getattr(thing, "__closure__", None) or ():
            yield from reachable(cell.cell_contents, seen)
        for part in ("__dict__", "__self__", "args", "keywords"):
            yield from reachable(getattr(thing, part, None), seen)


def holds(thing, secret):
    """Whether the bytes of a tensor are anywhere in the memory behind an object's tensors, views included."""
    wanted = secret.contiguous().numpy().tobytes()
    return any(wanted in bytes(tensor.detach().untyped_storage()) for tensor in reachable(thing))


@pytest.mark.parametrize("space", ["latent", "logits"])
def test_a_method_that_searches_for_test_labels_finds_none(run, logit_run, space, tmp_path):
    which = run if space == "latent" else logit_run
    which.latents[2].save(tmp_path / "latents")
    current = TaskLatents.load(tmp_path / "latents")
    labels, found = current.test_labels, []
    # The search would find them, also behind an empty view.
    assert holds({"all": current}, labels)
    assert holds(labels[:0], labels)

    @method("thief", group="test", text="searches for labels")
    def thief(inputs):
        found.append([holds(inputs, secret) for secret in (labels, labels.int(), labels < 6, (labels < 6).float())])
        found.append({len(tensor) for tensor in reachable(inputs) if tensor.ndim and tensor.dtype == torch.int64})
        return torch.zeros(len(inputs.test), inputs.classes)

    @method("greedy", group="test", text="wants more than its share", uses_labels=True)
    def greedy(inputs, old):
        found.append((type(old), {each.name for each in fields(old)}, holds(old, labels)))
        return torch.zeros(len(inputs.test), inputs.classes)

    try:
        evaluate_task(current, which.heads[2], **arguments(which, 3))
    finally:
        del METHODS._found["thief"], METHODS._found["greedy"]
    secrets, lengths, oracle = found
    assert secrets == [False] * 4
    assert len(labels) not in lengths
    assert oracle == (OldSamples, {"mask", "previous", "statistics"}, False)


@pytest.mark.parametrize("space", ["latent", "logits"])
def test_label_free_scores_do_not_depend_on_test_labels(run, logit_run, space, predictions):
    """End to end: shuffled labels, over the border between old and new, change oracles and counts but no score."""
    which = run if space == "latent" else logit_run
    current = which.latents[2]
    order = torch.randperm(len(current.test_labels), generator=torch.Generator().manual_seed(1))
    shuffled = replace(current, test_labels=current.test_labels[order])
    old = shuffled.test_labels < 6
    previous = replace(which.latents[1], test_labels=shuffled.test_labels[old])
    first, second = (
        predictions(latents, which.heads[2], **arguments(which, 3, previous=before))
        for latents, before in ((current, which.latents[1]), (shuffled, previous))
    )
    assert first.keys() == second.keys()
    for name, prediction in first.items():
        same = torch.equal(prediction.scores, second[name].scores)
        assert same == (not METHODS[name[0]].uses_labels), name


def test_no_choice_is_made_on_test_data(run, predictions):
    """Half of the test samples in another order give the same aligners and, for each sample left, equal scores."""
    current, previous = run.latents[2], run.latents[1]
    keep = torch.randperm(len(current.test), generator=torch.Generator().manual_seed(2))[: len(current.test) // 2]
    half = replace(current, test=current.test[keep], test_labels=current.test_labels[keep])
    place = (current.test_labels < 6).cumsum(0) - 1
    kept_old = place[keep[current.test_labels[keep] < 6]]
    before = replace(previous, test=previous.test[kept_old], test_labels=previous.test_labels[kept_old])
    every = predictions(current, run.heads[2], **arguments(run, 3))
    some = predictions(half, run.heads[2], **arguments(run, 3, previous=before))
    assert every.keys() == some.keys()
    for name, prediction in every.items():
        assert torch.allclose(prediction.scores[keep], some[name].scores, atol=1e-4), name
    whole, part = (
        evaluate_task(latents, run.heads[2], **arguments(run, 3, previous=old))
        for latents, old in ((current, previous), (half, before))
    )
    for name, aligner in whole.aligners.items():
        state = part.aligners[name].state_dict()
        assert all(torch.equal(value, state[key]) for key, value in aligner.state_dict().items()), name
    assert all(torch.equal(part.prototypes[name], moved) for name, moved in whole.prototypes.items())
    for name, statistics in whole.statistics.items():
        assert torch.equal(statistics.covariances, part.statistics[name].covariances)


def test_equal_seeds_give_equal_results_and_tasks_have_seeds_of_their_own(run, make_run):
    assert make_run().rows == run.rows
    other = make_run(seed=1)
    assert other.rows != run.rows
    assert run.evaluations[1].aligners["eli"].seed != run.evaluations[2].aligners["eli"].seed
    assert run.evaluations[1].aligners["eli"].seed != other.evaluations[1].aligners["eli"].seed


def test_noise_is_seeded_and_leaves_the_global_random_state_alone(run):
    given = arguments(run, 3, settings=run.settings.replace(noise=1.0))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = evaluate_task(run.latents[2], run.heads[2], **given)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = evaluate_task(run.latents[2], run.heads[2], **given)
    assert again.rows == first.rows
    assert all(torch.equal(again.prototypes[name], moved) for name, moved in first.prototypes.items())
    assert first.rows != run.evaluations[2].rows


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
        evaluate_task(run.latents[2], run.heads[2], **arguments(run, 3, **changes))


def test_heads_and_test_samples_must_be_those_of_the_tasks(run):
    current, previous = run.latents[2], run.latents[1]
    with pytest.raises(EvaluationError, match="6 outputs, but 8 classes"):
        evaluate_task(current, run.heads[1], **arguments(run, 3))
    for wrong in (replace(previous, test_labels=previous.test_labels.flip(0)), run.latents[0]):
        with pytest.raises(EvaluationError, match="labels differ"):
            evaluate_task(current, run.heads[2], **arguments(run, 3, previous=wrong))
    keep, keep_before = current.test_labels >= 4, previous.test_labels >= 4
    some = replace(current, test=current.test[keep], test_labels=current.test_labels[keep])
    before = replace(previous, test=previous.test[keep_before], test_labels=previous.test_labels[keep_before])
    with pytest.raises(EvaluationError, match="no test sample of task 1"):
        evaluate_task(some, run.heads[2], **arguments(run, 3, previous=before))
    strange = replace(current, test_labels=current.test_labels + 1)
    with pytest.raises(EvaluationError, match="class 8"):
        evaluate_task(strange, run.heads[2], **arguments(run, 3))


def test_head_is_read_in_evaluation_mode_and_its_mode_is_restored():
    head = nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 5)).train()
    head[1].eval()
    z = torch.randn(20, 3)
    logits = read_head(head, z, classes=4)
    assert torch.allclose(logits, head[1](z)[:, :4])
    assert not logits.requires_grad
    assert (head.training, head[0].training, head[1].training) == (True, True, False)


def test_seconds_and_drift(run):
    last = run.evaluations[2]
    assert set(last.seconds) == {"fit", "methods"}
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


def test_what_the_next_task_needs_can_be_saved_and_loaded(run, logit_run, tmp_path):
    for evaluation in (*run.evaluations, logit_run.evaluations[1]):
        write_tensors(tmp_path / "prototypes", evaluation.prototypes)
        loaded, _ = read_tensors(tmp_path / "prototypes")
        assert loaded.keys() == evaluation.prototypes.keys()
        assert all(torch.equal(loaded[name], there) for name, there in evaluation.prototypes.items())
        evaluate.write_statistics(tmp_path / "statistics", evaluation.statistics)
        again = read_statistics(tmp_path / "statistics")
        assert again.keys() == evaluation.statistics.keys()
        for name, statistics in evaluation.statistics.items():
            assert again[name].config() == statistics.config()
            for key, value in statistics.state_dict().items():
                assert torch.equal(again[name].state_dict()[key], value)
    z = run.latents[2].test
    for name, aligner in run.evaluations[2].aligners.items():
        loaded = Aligner.load(aligner.save(tmp_path / f"{name}.safetensors"))
        assert torch.equal(loaded.align(z), aligner.align(z))


def test_damaged_statistics_are_a_named_error(run, tmp_path):
    file = tmp_path / "statistics"
    evaluate.write_statistics(file, run.evaluations[1].statistics)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DamagedRunError, match="statistics is damaged"):
        read_statistics(file)
    write_tensors(file, {"repair:means": torch.zeros(2, 3)}, {"repair": {"covariance": "round"}})
    with pytest.raises(DamagedRunError, match="covariance must be one of"):
        read_statistics(file)


def test_mean_shift_by_hand():
    """One old class at (1, 0) and one at (0, 1); both drifted by (0, 3), which the new class's pairs show exactly."""
    shift = torch.tensor([0.0, 3.0])
    old = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    labels = torch.tensor([0, 1, 0])
    new = torch.tensor([[-4.0, 0.0], [-4.0, 1.0]])
    nothing, no_labels = torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)
    first = TaskLatents(old, labels, old, labels, nothing, no_labels, nothing, nothing)
    second = TaskLatents(
        test=torch.cat([old + shift, new + shift]),
        test_labels=torch.tensor([0, 1, 0, 2, 2]),
        new=new + shift,
        new_labels=torch.tensor([2, 2]),
        memory=nothing,
        memory_labels=no_labels,
        pairs_previous=new,
        pairs_current=new + shift,
    )
    head, before = LinearHead(2, 3), LinearHead(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        before.weight.copy_(head.weight[:2])
        head.bias.zero_(), before.bias.zero_()
    common = {"settings": QUICK.replace(iterations=2), "seed": 0}
    nobody = {"previous": None, "previous_head": None, "prototypes": {}, "statistics": {}}
    start = evaluate_task(first, before, **nobody, task_sizes=[2], **common)
    carried = {"prototypes": start.prototypes, "statistics": start.statistics}
    found = evaluate_task(second, head, previous=first, previous_head=before, **carried, task_sizes=[2, 1], **common)
    rows = {row.method: row for row in found.rows if row.classifier == "fc"}
    # Base: everything looks like class 1 but the new samples, whose -x is 4 against y = 3 and y = 4 (a tie: class 1).
    assert (rows["base"].old, rows["base"].new) == (pytest.approx(1 / 3), 0.5)
    assert rows["base"].by_task == (pytest.approx(1 / 3), 0.5)
    assert (rows["mean-shift/oracle"].old, rows["mean-shift/oracle"].new) == (1.0, 0.5)
    # Moving the new samples back too takes their drift off as well: -x = 4 against y = 0 and y = 1.
    assert (rows["mean-shift/all"].old, rows["mean-shift/all"].new) == (1.0, 1.0)
    assert (rows["previous-model"].old, rows["previous-model"].new) == (1.0, 0.5)
    assert rows["oracle-mask"].old == pytest.approx(1 / 3)
    assert rows["oracle-mask-both"].new == 1.0
    assert rows["mean-shift/oracle"].accuracy == pytest.approx(4 / 5)
    # These latents have no labelled pairs: they are of version 0.1.
    assert not [row for row in found.rows if row.method.startswith("repair")]
    assert found.drift["base"].distance == pytest.approx(3.0)
    assert found.drift["mean-shift"].distance == pytest.approx(0.0, abs=1e-6)
    assert found.drift["mean-shift"].moved == pytest.approx(3.0)
    cosines = 1 / math.hypot(1, 3), 1.0, (1 + 0.1 * 3.1) / math.hypot(1, 0.1) / math.hypot(1, 3.1)
    assert found.drift["base"].cosine_distance == pytest.approx(1 - sum(cosines) / 3, abs=1e-6)
    assert found.drift["mean-shift"].cosine_distance == pytest.approx(0.0, abs=1e-6)


OLD_CLASSES = {2: 4, 3: 6}


def rows_of(run, task):
    return {row.method: row for row in run.rows if row.task == task}


def logits_of(run, task):
    with torch.no_grad():
        return run.heads[task - 1](run.latents[task - 1].test)


def accuracy(logits, labels):
    return (logits.argmax(dim=1) == labels).double().mean().item()


@pytest.mark.parametrize("task", [2, 3])
@pytest.mark.parametrize("name", ["eli", "mean-shift", "ridge", "random-shift", "untrained"])
def test_logit_oracle_replaces_old_logits_of_old_samples(logit_run, task, name):
    aligner = logit_run.evaluations[task - 1].aligners[name]
    labels, old_classes = logit_run.latents[task - 1].test_labels, OLD_CLASSES[task]
    expected = logits_of(logit_run, task).clone()
    for i, label in enumerate(labels.tolist()):
        if label < old_classes:
            expected[i, :old_classes] = aligner.align(expected[i : i + 1, :old_classes])[0]
    row = rows_of(logit_run, task)[f"{name}/oracle"]
    assert row.accuracy == pytest.approx(accuracy(expected, labels))
    assert row.new == rows_of(logit_run, task)["base"].new


@pytest.mark.parametrize("task", [2, 3])
def test_pairs_are_the_logits_of_both_heads(logit_run, task):
    latents, old_classes = logit_run.latents[task - 1], OLD_CLASSES[task]
    with torch.no_grad():
        previous = logit_run.heads[task - 2](latents.pairs_previous)
        current = logit_run.heads[task - 1](latents.pairs_current)[:, :old_classes]
    shift = MeanShift().fit_latents(previous, current).shift
    assert torch.allclose(logit_run.evaluations[task - 1].aligners["mean-shift"].shift, shift, atol=1e-5)
    assert logit_run.evaluations[task - 1].aligners["eli"].dim == old_classes


def test_probe_sees_all_logits_and_all_replaces_everywhere(logit_run):
    latents, labels = logit_run.latents[2], logit_run.latents[2].test_labels
    with torch.no_grad():
        old, new = (logit_run.heads[2](z) for z in (latents.memory[latents.memory_labels < 6], latents.new))
    logits, aligner = logits_of(logit_run, 3), logit_run.evaluations[2].aligners["eli"]
    gate = ByProbe().fit(old, new)(logits)
    moved = torch.cat([aligner.align(logits[:, :6]), logits[:, 6:]], dim=1)
    rows = rows_of(logit_run, 3)
    assert rows["eli/all"].accuracy == pytest.approx(accuracy(moved, labels))
    gated = torch.where(gate.unsqueeze(1), moved, logits)
    assert rows["eli/by-probe"].accuracy == pytest.approx(accuracy(gated, labels))
    assert rows["eli/by-probe"].gate_accuracy == pytest.approx((gate == (labels < 6)).double().mean().item())


def test_what_does_not_move_anything_is_the_same_for_latents_and_logits(run, logit_run):
    for name in ("base", "bias-offset", "oracle-mask", "oracle-mask-both", "previous-model"):
        for task in (2, 3):
            (latent,) = (r for r in run.rows if (r.task, r.method, r.classifier) == (task, name, "fc"))
            assert latent == rows_of(logit_run, task)[name]
    assert any(
        row.accuracy != rows_of(logit_run, row.task)[row.method].accuracy
        for row in run.rows
        if row.classifier == "fc" and row.method.startswith("eli/")
    )


def test_logits_have_no_prototypes_or_statistics_and_their_own_drift(logit_run):
    assert [evaluation.prototypes for evaluation in logit_run.evaluations] == [{}, {}, {}]
    assert [evaluation.statistics for evaluation in logit_run.evaluations] == [{}, {}, {}]
    assert not [name for name in logit_run.evaluations[2].aligners if name.startswith("forward")]
    with torch.no_grad():
        previous = logit_run.heads[1](logit_run.latents[1].test)
    old = logit_run.latents[2].test_labels < 6
    expected = (logits_of(logit_run, 3)[old][:, :6] - previous).norm(dim=1).mean().item()
    assert logit_run.evaluations[2].drift["base"].distance == pytest.approx(expected, rel=1e-5)


def test_needs_are_checked(run, bare_run, logit_run):
    everything = {"latents", "exemplars", "old-exemplars", "exemplars-of-both", "labelled-pairs", "statistics"}
    met = {
        name: {need for need in everything if inputs_of(which, 3).has(need, "repair")}
        for name, which in (("run", run), ("bare", bare_run), ("logits", logit_run))
    }
    assert met == {
        "run": everything,
        "bare": {"latents", "labelled-pairs", "statistics"},
        "logits": {"exemplars", "old-exemplars", "exemplars-of-both"},
    }
    assert not inputs_of(run, 3).has("statistics", "a method that carried none")
    with pytest.raises(OptionError, match="'wishes'"):
        method("mine", group="test", text="", needs=("wishes",))(lambda inputs: inputs)
