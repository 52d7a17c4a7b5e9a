"""Which runs are the same: configurations kept as JSON, their digests, and what a trained run may change."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.lab.experiments.composing import composed

from elign.lab.experiments.run_config import ConfigError, compose, describe, flatten, from_dict, with_aligner


@pytest.mark.parametrize(
    "typed", ["", "learner=aanet data=cifar100 preset=paper", "protocol.first=4 protocol.increment=2"]
)
def test_a_configuration_survives_json(typed):
    config = composed(typed)
    again = from_dict(json.loads(json.dumps(describe(config))))
    assert again == config
    assert again.digest() == config.digest()


def test_a_damaged_description_is_refused():
    plain = describe(composed())
    with pytest.raises(ConfigError, match="no setting 'speed'"):
        from_dict(plain | {"speed": 3})
    with pytest.raises(ConfigError, match="'seed' is missing"):
        from_dict({key: part for key, part in plain.items() if key != "seed"})
    with pytest.raises(ConfigError, match=r"no setting 'train\.epoch'. Did you mean 'epochs'"):
        from_dict(plain | {"train": plain["train"] | {"epoch": 3}})
    with pytest.raises(ConfigError, match="train must be a group"):
        from_dict(plain | {"train": 3})


def test_a_run_from_before_a_setting_came_is_the_same_run():
    plain = describe(composed())
    assert plain["data"].pop("validation") is None
    assert from_dict(plain) == composed()
    assert "data.validation" not in flatten(composed())
    assert flatten(composed("data.validation=50"))["data.validation"] == 50
    assert composed("data.validation=50").training_digest() != composed().training_digest()


def test_the_digests_do_not_change_from_one_version_to_the_next():
    # If a change of the defaults is meant, so is a change here: runs from before it are then not gone on with.
    config = from_dict(describe(composed()))
    assert (config.training_digest(), config.digest()) == ("92fa3d13104c643b", "bb683e4175f9b965")


def test_circumstances_do_not_make_another_run():
    typed = "out=x start_from=x data.data_dir=x data.workers=2 train.threads=1 train.accelerator=cpu preset=smoke"
    typed += " train.eval_batch_size=7 train.checkpoint_minutes=1 protocol=b50-5 learner.temperature=2"
    assert composed(typed) != composed()
    assert composed(typed).digest() == composed().digest()


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("learner.name", "lucir"),
        ("learner.imprint", False),
        ("learner.options", {"temperature": 3.0, "distillation": 1.0}),
        ("data.order", None),
        ("data.limit", 9),
        ("protocol.name", "half-1"),
        ("model.name", "resnet14"),
        ("train.epochs", 4),
        ("train.precision", "bf16"),
        ("train.layout", "channels-last"),
        ("train.devices", 2),
        ("memory.per_class", 9),
    ],
)
def test_what_decides_the_models_makes_another_run(key, other):
    group, name = key.split(".")
    changed = dataclasses.replace(getattr(composed(), group), **{name: other})
    config = dataclasses.replace(composed(), **{group: changed})
    assert config.training_digest() != composed().training_digest()
    assert dataclasses.replace(composed(), seed=1).training_digest() != composed().training_digest()


def test_the_aligner_decides_the_results_but_not_the_models():
    assert composed("aligner.steps=60").training_digest() == composed().training_digest()
    assert composed("aligner.steps=60").digest() != composed().digest()


# --- another aligner for a trained run -------------------------------------------------------------------


def test_a_trained_run_can_have_another_aligner():
    original = ["learner=lucir", "aligner.steps=5", "aligner.space=logits", "out=x"]
    config = with_aligner(compose(original), ["aligner.steps=60", "aligner.hidden=[]"])
    assert config == compose(
        ["learner=lucir", "aligner.steps=60", "aligner.hidden=[]", "aligner.space=logits", "out=x"]
    )
    changed = with_aligner(compose(original), ["aligner=latent"]).aligner
    assert (changed.space, changed.steps) == ("latent", 5)


@pytest.mark.parametrize(
    ("new", "named"),
    [
        ("seed=1", "seed cannot change"),
        ("train.epochs=9", "train.epochs cannot change"),
        ("learner.temperature=9", "learner.temperature cannot change"),
        ("learner=lucir", "learner cannot change"),
        ("preset=paper", "preset cannot change"),
        ("out=elsewhere", "out cannot change"),
    ],
)
def test_a_trained_run_cannot_change_otherwise(new, named):
    with pytest.raises(ConfigError) as caught:
        with_aligner(compose(["aligner.steps=5"]), ["aligner.steps=60", new])
    assert named in str(caught.value)
