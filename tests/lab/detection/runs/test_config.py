"""The settings of detection runs: what the files say is what the learners publish, and mistakes are named."""

from __future__ import annotations

import pytest

from elign.lab.config.composition import ConfigError
from elign.lab.config.schema import describe
from elign.lab.detection.config import TREE
from elign.lab.detection.data import DETECTION_DATASETS
from elign.lab.detection.learners import DETECTION_LEARNERS


def compose(*typed):
    return TREE.compose(typed)


@pytest.mark.parametrize("preset", ["smoke", "small", "paper"])
@pytest.mark.parametrize("data", DETECTION_DATASETS)
def test_every_preset_takes_every_data_set(preset, data, tmp_path):
    path = [f"data.path={tmp_path}"] if data in ("voc", "coco") else []
    config = compose(f"preset={preset}", f"data={data}", *path)
    assert config.data.name == data
    assert (config.data.scenes is None) == (data != "digit-scenes" or preset == "paper")
    assert config.model.name == ("resnet50-c4" if preset == "paper" else "tiny-c4")
    assert TREE.from_dict(describe(config)) == config


def test_learners_have_their_published_options_and_keep_images_only_to_replay_them():
    configs = {name: compose(f"learner={name}") for name in DETECTION_LEARNERS}
    assert all(configs[name].learner.options == DETECTION_LEARNERS[name].settings() for name in configs)
    assert {name for name, config in configs.items() if config.memory.per_class} == {"ore", "iod"}
    assert compose("learner=iod", "memory.per_class=3").memory.per_class == 3


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("learner=icarl", "no learner 'icarl'"),
        ("learner.warp=3", "has no setting 'learner.warp'.*warp_every"),
        ("train.devices=2", "one device"),
        ("data=voc", r"data=voc needs data.path"),
        ("model.nms=0", "nms"),
        ("aligner.space=logits", "no setting 'aligner.space'"),
        ("evaluation=kitti", "no evaluation 'kitti'.*coco"),
        ("evaluation.coco=2", "evaluation.coco must be true or false"),
        ("data.scenes=[3]", "scenes"),
        ("data.scenes=[3,0]", "scenes"),
    ],
)
def test_mistakes_are_named(typed, message):
    with pytest.raises(ConfigError, match=message):
        compose(typed)


def test_cocos_numbers_come_beside_the_others():
    for typed in ("evaluation=coco", "evaluation.coco=true"):
        config = compose("preset=paper", typed)
        assert config.evaluation.coco
        # What else is counted stays as the preset says.
        assert config.evaluation.method == "11-point"
        assert config.training_digest() == compose("preset=paper").training_digest()
    assert not compose().evaluation.coco


def test_another_aligner_changes_nothing_else():
    config = compose("learner=ilod")
    changed = TREE.with_aligner(config, ["aligner.steps=3", "aligner=shared-backbone"])
    assert (changed.aligner.steps, changed.aligner.shared_backbone) == (3, True)
    assert changed.model_copy(update={"aligner": config.aligner}) == config
    assert changed.training_digest() == config.training_digest()
    assert changed.digest() != config.digest()
    with pytest.raises(ConfigError, match=r"train.epochs cannot change"):
        TREE.with_aligner(config, ["train.epochs=3"])


def test_first_tasks_differ_in_what_decides_them():
    def first(*typed):
        return compose(*typed).first_task()

    assert first("learner=ilod", "train.epochs=3") == first("learner=finetune", "aligner.steps=4")
    assert first("train.first_epochs=3") != first()
    assert first("seed=1") != first()
