"""Settings of a run that make no sense: each is refused in one line that says what to write."""

from __future__ import annotations

import dataclasses

import pytest
from tests.lab.experiments.composing import composed

from elign import ElignError
from elign.lab.experiments.run_config import ConfigError


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("lerner=icarl", "no setting 'lerner'. Did you mean 'learner'?"),
        ("aligner.step=60", "no setting 'aligner.step'. Did you mean 'aligner.steps'?"),
        ("epochs=3", "Did you mean 'train.epochs'?"),
        ("batch_size=3", "Did you mean 'train.batch_size' or 'aligner.batch_size'?"),
        ("--learner=icarl", "Did you mean 'learner'?"),
        ("images=cifar", "no setting 'images'"),
        ("hydra.run.dir=x", "no setting 'hydra.run.dir'"),
        ("learner@x=icarl", "no setting 'learner@x'"),
        ("preset.x=1", "no setting 'preset.x'"),
        ("train.epochs.x=1", "no setting 'train.epochs.x'"),
        ("learner.options=1", "no setting 'learner.options'"),
        ("data.name=mnist", "Write data=NAME"),
        ("learner=icral", "no learner 'icral'. Did you mean 'icarl'? Choose from: aanet, "),
        ("preset=big", "Choose from: paper, small, smoke."),
        ("model=resnet", "no model 'resnet'"),
        ("memory=null", "no memory 'null'. Choose from: budget, none, per-class."),
        ("learner.temprature=2", "'icarl' has no setting 'learner.temprature'. Did you mean 'temperature'?"),
        ("learner=finetune learner.margin=2", "'finetune' has no setting 'learner.margin'"),
        ("learner.temperature=0", "learner.temperature must be a number > 0, not 0"),
        ("learner.freeze_old=1", "learner.freeze_old must be true or false, not 1"),
        ("train.epochs=many", "train.epochs must be a whole number >= 1, not 'many'"),
        ("train.epochs=0", "train.epochs must be a whole number >= 1, not 0"),
        ("train.learning_rate=nan", "train.learning_rate must be a number > 0"),
        ("train.precision=8", "train.precision must be one of auto, 32, bf16, not 8"),
        ("train.milestones=[0.7,0.2]", "train.milestones must be rising"),
        ("train.accelerator=", "train.accelerator must be one of auto, cpu, cuda, mps, not ''"),
        ("aligner.hidden=64", "aligner.hidden must be a list of whole numbers >= 1, such as [64,64] or []"),
        ("memory.budget=3 memory.per_class=3", "cannot both be given"),
        ("protocol.first=3", "must be given together"),
        ("protocol=null", "needs a name"),
        ("data=folder", "data=folder needs data.path=FOLDER"),
        ("seed=-1", "seed must be a whole number >= 0"),
        ("seed=1 seed=2", "seed is given twice: '1' and '2'"),
        ("protocol=half-5 protocol.name=half-5", "given twice"),
        ("icarl", "'icarl' is no setting. Write key=value"),
        ("=3", "is no setting"),
        ("+seed=1", "cannot be added or removed"),
        ("~seed", "cannot be added or removed"),
        ("seed=1,2", "gives several values"),
        ("seed=range(1,3)", "gives several values"),
        ("seed=[", "cannot be read"),
        ("seed=${nope}", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(typed, complaint):
    with pytest.raises(ConfigError) as caught:
        composed(typed)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, ElignError)


@pytest.mark.parametrize(
    ("key", "bad", "complaint"),
    [
        ("learner.head", "square", "must be one of cosine, linear, not 'square'"),
        ("learner.options", {"top_k": 1.5}, "learner.top_k must be a whole number >= 1, not 1.5"),
        ("learner.options", {"branch_two": "loose"}, "must be one of free, scaled, fixed, not 'loose'"),
        ("learner.options", {"new_one": [1]}, "learner.new_one must be"),
        ("train.epochs", None, "must be a whole number >= 1, not None"),
        ("train.epochs", 2.5, "must be a whole number >= 1, not 2.5"),
        ("train.devices", True, "must be a whole number >= 1, not True"),
        ("train.batch_size", 1, "must be a whole number >= 2, not 1"),
        ("train.learning_rate", -1, "must be a number > 0, not -1"),
        ("train.learning_rate", float("inf"), "must be a number > 0, not inf"),
        ("train.momentum", 1, "must be a number >= 0 and < 1, not 1"),
        ("train.weight_decay", -1e-4, "must be a number >= 0, not -0.0001"),
        ("train.milestones", 0.5, "must be a list of numbers, not 0.5"),
        ("train.milestones", [0.5, 1.0], "must be rising parts of the epochs between 0 and 1"),
        ("train.gamma", 0, "must be a number > 0 and <= 1"),
        ("train.threads", 0, "must be a whole number >= 1"),
        ("aligner.hidden", [0], "must be a list of whole numbers >= 1"),
        ("aligner.mixup", 0, "must be a number > 0"),
        ("aligner.ema_decay", 1, "must be a number >= 0 and < 1"),
        ("aligner.space", "pixels", "must be one of latent, logits"),
        ("memory.per_class", 0, "must be a whole number >= 1"),
        ("memory.selection", "best", "must be one of herding, random"),
        ("data.workers", -1, "must be a whole number >= 0"),
        ("data.limit", "3", "must be a whole number >= 1, not '3'"),
    ],
)
def test_values_are_also_checked_without_a_command_line(key, bad, complaint):
    group, name = key.split(".")
    section = getattr(composed(), group)
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(section, **{name: bad})
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{group}.")
