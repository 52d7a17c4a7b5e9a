"""The logit aligner: the same readings, where the old classes' logits are moved instead of the latents."""

from __future__ import annotations

import pytest
import torch

from elign import ByProbe, MeanShift
from elign.lab.evaluation.settings import AlignerSettings
from elign.utils.errors import OptionError

KNOWN = {2: 4, 3: 6}


def rows_of(run, task):
    return {row.reading: row for row in run.rows if row.task == task}


def logits_of(run, task):
    with torch.no_grad():
        return run.heads[task - 1](run.latents[task - 1].test)


def accuracy(logits, labels):
    return (logits.argmax(dim=1) == labels).double().mean().item()


@pytest.mark.parametrize("task", [2, 3])
@pytest.mark.parametrize("name", ["eli", "mean-shift", "ridge", "random-shift", "untrained"])
def test_oracle_replaces_old_logits_of_old_samples(logit_run, task, name):
    aligner = logit_run.evaluations[task - 1].aligners[name]
    labels, known = logit_run.latents[task - 1].test_labels, KNOWN[task]
    expected = logits_of(logit_run, task).clone()
    for i, label in enumerate(labels.tolist()):
        if label < known:
            expected[i, :known] = aligner.align(expected[i : i + 1, :known])[0]
    row = rows_of(logit_run, task)[f"{name}/oracle"]
    assert row.accuracy == pytest.approx(accuracy(expected, labels))
    assert row.new == rows_of(logit_run, task)["base"].new


@pytest.mark.parametrize("task", [2, 3])
def test_pairs_are_the_logits_of_both_heads(logit_run, task):
    latents, known = logit_run.latents[task - 1], KNOWN[task]
    with torch.no_grad():
        previous = logit_run.heads[task - 2](latents.pairs_previous)
        current = logit_run.heads[task - 1](latents.pairs_current)[:, :known]
    shift = MeanShift().fit_latents(previous, current).shift
    assert torch.allclose(logit_run.evaluations[task - 1].aligners["mean-shift"].shift, shift, atol=1e-5)
    assert logit_run.evaluations[task - 1].aligners["eli"].dim == known


def test_probe_reads_all_logits_and_all_replaces_everywhere(logit_run):
    latents, labels = logit_run.latents[2], logit_run.latents[2].test_labels
    with torch.no_grad():
        old, new = (
            logit_run.heads[2](latents.memory[latents.memory_labels < 6]),
            logit_run.heads[2](latents.new),
        )
    logits, aligner = logits_of(logit_run, 3), logit_run.evaluations[2].aligners["eli"]
    gate = ByProbe().fit(old, new)(logits)
    moved = torch.cat([aligner.align(logits[:, :6]), logits[:, 6:]], dim=1)
    rows = rows_of(logit_run, 3)
    assert rows["eli/all"].accuracy == pytest.approx(accuracy(moved, labels))
    gated = torch.where(gate.unsqueeze(1), moved, logits)
    assert rows["eli/by-probe"].accuracy == pytest.approx(accuracy(gated, labels))
    assert rows["eli/by-probe"].gate_accuracy == pytest.approx((gate == (labels < 6)).double().mean().item())


def test_what_does_not_move_anything_is_the_same_in_both_spaces(run, logit_run):
    for name in ("base", "bias-offset", "oracle-mask", "oracle-mask-both", "previous-model"):
        for task in (2, 3):
            (latent,) = (r for r in run.rows if (r.task, r.reading, r.classifier) == (task, name, "fc"))
            assert latent == rows_of(logit_run, task)[name]
    assert any(
        row.accuracy != rows_of(logit_run, row.task)[row.reading].accuracy
        for row in run.rows
        if row.classifier == "fc" and row.reading.startswith("eli/")
    )


def test_there_are_no_prototypes(logit_run):
    assert [evaluation.prototypes for evaluation in logit_run.evaluations] == [{}, {}, {}]
    assert not [name for name in logit_run.evaluations[2].aligners if name.startswith("forward")]


def test_drift_is_measured_on_logits(logit_run):
    with torch.no_grad():
        previous = logit_run.heads[1](logit_run.latents[1].test)
    old = logit_run.latents[2].test_labels < 6
    current = logits_of(logit_run, 3)[old][:, :6]
    expected = (current - previous).norm(dim=1).mean().item()
    assert logit_run.evaluations[2].drift["base"].distance == pytest.approx(expected, rel=1e-5)


def test_unknown_space():
    with pytest.raises(OptionError, match="latent, logits"):
        AlignerSettings(space="pixels")  # type: ignore[arg-type]
