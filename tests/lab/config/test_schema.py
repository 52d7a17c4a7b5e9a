"""Which runs are the same: configurations kept as JSON, their digests, and what a trained run may change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.lab.config.test_composition import composed

from elign.lab.config import ConfigError, compose, describe, flatten
from elign.lab.config.composition import upgrade
from elign.lab.config.schema import TREE

MEASURED = sorted(Path(__file__).parents[3].glob("measured/runs/*/run.json"))


@pytest.mark.parametrize(
    "typed", ["", "learner=aanet data=cifar100 preset=paper", "protocol.first=4 protocol.increment=2"]
)
def test_a_configuration_survives_json(typed):
    config = composed(typed)
    again = TREE.from_dict(json.loads(json.dumps(describe(config))))
    assert again == config
    assert again.digest() == config.digest()


def test_a_configuration_cannot_change():
    with pytest.raises(ValidationError):
        composed().train.epochs = 3
    assert composed().replace(seed=4).seed == 4
    with pytest.raises(ConfigError, match="seed must be greater than or equal to 0"):
        composed().replace(seed=-4)


@pytest.mark.parametrize(
    ("key", "bad", "complaint"),
    [
        ("speed", 3, "no setting 'speed'. Did you mean 'seed'"),
        ("train.epoch", 3, "no setting 'train.epoch'. Did you mean 'epochs'"),
        ("train", 3, "train must be a group of settings"),
        ("learner.head", "square", "learner.head must be 'cosine' or 'linear', not 'square'"),
        ("learner.options", {"new": [1]}, "learner.new must be"),
        ("train.epochs", None, "train.epochs must be a whole number, not None"),
        ("train.epochs", 2.5, "must be a whole number, not 2.5"),
        ("train.devices", True, "must be a whole number, not True"),
        ("train.batch_size", 1, "must be greater than or equal to 2, not 1"),
        ("train.learning_rate", float("inf"), "must be a finite number"),
        ("train.momentum", 1, "must be less than 1"),
        ("train.milestones", [0.5, 1.0], "must be rising parts of the epochs between 0 and 1"),
        ("train.threads", 0, "must be greater than or equal to 1"),
        ("train.threads", "2", "must be a whole number, not '2'"),
        ("aligner.mixup", 0, "must be greater than 0"),
        ("aligner.ema_decay", 1, "aligner: ema_decay"),
        ("aligner.space", "pixels", "must be 'latent' or 'logits'"),
        ("memory.selection", "best", "must be 'herding' or 'random'"),
        ("data.limit", "3", "must be a whole number, not '3'"),
        ("protocol.name", 3, "protocol.name must be a text, not 3"),
    ],
)
def test_values_of_a_file_are_checked(key, bad, complaint):
    values = describe(composed())
    group, _, name = key.rpartition(".")
    (values[group] if group else values)[name] = bad
    with pytest.raises(ConfigError) as caught:
        TREE.from_dict(values)
    assert complaint in str(caught.value)
    del values[key.partition(".")[0]]
    with pytest.raises(ConfigError, match=r"is missing|no setting"):
        TREE.from_dict({name: value for name, value in values.items() if name != "seed"})


def test_the_digests_do_not_change_from_one_version_to_the_next():
    # Change these only if defaults are meant to change: runs from before are then not resumed.
    config = composed()
    assert (config.training_digest(), config.digest()) == ("92fa3d13104c643b", "bb683e4175f9b965")


def test_a_run_from_before_a_setting_came_is_the_same_run():
    values = describe(composed())
    del values["data"]["validation"], values["train"]["fast"], values["train"]["threads"]
    assert TREE.from_dict(values) == composed()
    assert "data.validation" not in flatten(composed())
    assert flatten(composed("data.validation=50"))["data.validation"] == 50


@pytest.mark.parametrize(
    ("precision", "layout", "threads", "recorded", "fast"),
    [
        ("32", "plain", None, {}, False),
        ("bf16", "channels-last", 1, {}, True),
        ("auto", "auto", None, {"precision": "32", "threads": 1}, False),
        ("auto", "auto", None, {"precision": "bf16", "threads": 2}, True),
    ],
)
def test_settings_of_earlier_versions_are_renamed(precision, layout, threads, recorded, fast):
    values = describe(composed())
    del values["train"]["fast"]
    values["train"] |= {"precision": precision, "layout": layout, "threads": threads}
    config = TREE.from_dict(upgrade(values, **recorded))
    assert (config.train.fast, config.train.threads) == (fast, recorded.get("threads", 1))
    assert (config == composed()) == (not fast)


def test_measured_runs_keep_their_digests():
    configs = {file.parent.name: TREE.from_dict(json.loads(file.read_text())["config"]) for file in MEASURED}
    assert all(config.train.fast for config in configs.values())
    # A folder's name ends with the digest that the version that made it computed; an archive shortens paths.
    named = {name: config.digest()[:8] for name, config in configs.items() if config.data.path is None}
    assert len(named) == 15
    assert all(name.endswith(digest) for name, digest in named.items())


def test_circumstances_do_not_make_another_run():
    typed = "out=x start_from=x data.data_dir=x data.workers=2 train.accelerator=cpu preset=smoke"
    typed += " train.eval_batch_size=7 train.checkpoint_minutes=1 protocol=b50-5 learner.temperature=2"
    assert composed(typed) != composed()
    assert composed(typed).digest() == composed().digest()


def test_what_decides_the_models_makes_another_run():
    typed = "learner=lucir learner.imprint=false learner.temperature=3 data.order=null data.limit=9 data.validation=50 "
    typed += "seed=1 protocol=half-1 model=resnet14 memory.per_class=9 train.epochs=4 train.fast=true train.threads=2"
    digests = {composed(one).training_digest() for one in ("", "train.devices=2", *typed.split())}
    assert len(digests) == 2 + len(typed.split())


def test_the_aligner_decides_the_results_but_not_the_models():
    assert composed("aligner.steps=60").training_digest() == composed().training_digest()
    assert composed("aligner.steps=60").digest() != composed().digest()


def test_the_first_task_does_not_depend_on_what_comes_later():
    first = composed().first_task()
    assert composed("train.epochs=9 memory=none aligner.steps=3 learner=finetune").first_task() == first
    for typed in ("seed=1", "train.first_epochs=9", "train.threads=2", "learner.head=linear", "model=resnet14"):
        assert composed(typed).first_task() != first


def test_a_trained_run_can_have_another_aligner():
    original = ["learner=lucir", "aligner.steps=5", "aligner.space=logits", "out=x"]
    config = TREE.with_aligner(compose(original), ["aligner.steps=60", "aligner.hidden=[]"])
    assert config == compose(
        ["learner=lucir", "aligner.steps=60", "aligner.hidden=[]", "aligner.space=logits", "out=x"]
    )
    changed = TREE.with_aligner(compose(original), ["aligner=latent"]).aligner
    assert (changed.space, changed.steps) == ("latent", 5)


@pytest.mark.parametrize(
    "new", ["seed=1", "train.epochs=9", "learner.temperature=9", "learner=lucir", "preset=paper", "out=elsewhere"]
)
def test_a_trained_run_cannot_change_otherwise(new):
    with pytest.raises(ConfigError, match=f"{new.partition('=')[0]} cannot change"):
        TREE.with_aligner(compose(["aligner.steps=5"]), ["aligner.steps=60", new])
