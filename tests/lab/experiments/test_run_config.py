"""The configuration of a run: what is typed is what comes, and presets and choices fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.experiments.composing import PRESETS, composed

from elign.lab.data.bench_dataset import BENCH_DATASETS
from elign.lab.data.protocol import ProtocolError
from elign.lab.experiments.run_config import TREE, AlignerConfig, RunConfig, compose
from elign.lab.learners import LEARNERS
from elign.lab.models import BACKBONES


def value(config: RunConfig, key: str) -> object:
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def test_without_a_word_it_is_a_smoke_test_on_the_embedded_digits():
    config = composed()
    assert (config.learner.name, config.data.name, config.preset, config.model.name) == (
        "icarl",
        "digits",
        "smoke",
        "conv",
    )
    assert config.protocol.protocol(10).sizes == (5, 1, 1, 1, 1, 1)
    assert (config.train.first_epochs, config.train.epochs, config.train.batch_size) == (12, 6, 64)
    assert (config.train.precision, config.train.layout) == ("32", "plain")
    assert (config.memory.budget, config.memory.per_class) == (None, 10)
    assert (config.aligner.iterations, config.aligner.steps) == (200, 10)
    assert (config.seed, config.out, config.start_from, config.data.order) == (0, None, None, 1993)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("learner=icarl data=cifar100 protocol=half-5", {"preset": "small", "model.name": "resnet20"}),
        ("learner=lucir data=digits preset=smoke out=DIR", {"learner.name": "lucir", "out": "DIR"}),
        ("seed=3", {"seed": 3}),
        ("memory=none", {"memory.budget": None, "memory.per_class": None}),
        ("memory=budget", {"memory.budget": 2000, "memory.per_class": None}),
        ("memory=per-class memory.per_class=7", {"memory.budget": None, "memory.per_class": 7}),
        ("preset=paper memory.per_class=7", {"memory.budget": None, "memory.per_class": 7}),
        ("memory.budget=50", {"memory.budget": 50, "memory.per_class": None}),
        ("memory.selection=random", {"memory.selection": "random", "memory.per_class": 10}),
        ("aligner.steps=60", {"aligner.steps": 60}),
        ("aligner.hidden=[512,512]", {"aligner.hidden": (512, 512)}),
        ("aligner.hidden=[]", {"aligner.hidden": ()}),
        ("aligner.space=logits", {"aligner.space": "logits"}),
        ("aligner=logits", {"aligner.space": "logits"}),
        ("aligner.mixup=0.3", {"aligner.mixup": 0.3}),
        ("model=resnet32", {"model.name": "resnet32"}),
        ("preset=paper data=cifar100 model=resnet14", {"model.name": "resnet14", "train.epochs": 160}),
        ("train.epochs=5", {"train.epochs": 5, "train.first_epochs": 12}),
        ("train=steps", {"train.schedule": "steps"}),
        ("train.precision=bf16", {"train.precision": "bf16"}),
        ("train.devices=2", {"train.devices": 2}),
        ("train.learning_rate=1e-2", {"train.learning_rate": 0.01}),
        ("protocol=b50-5", {"protocol.name": "half-5"}),
        ("protocol=half-7", {"protocol.name": "half-7"}),
        ("protocol.first=4 protocol.increment=2", {"protocol.name": None, "protocol.first": 4}),
        ("data=folder data.path=my/images", {"data.path": str(Path("my/images").resolve()), "model.name": "resnet18"}),
        ("data.order=null", {"data.order": None}),
        ("data.order=7", {"data.order": 7}),
        ("learner.temperature=4", {"learner.options.temperature": 4.0}),
        ("learner=aanet", {"learner.name": "aanet", "learner.options.less_forget": 5.0}),
        ("learner=aanet-implicit", {"learner.name": "aanet", "learner.options.less_forget": 0.0}),
        ("learner=aanet learner.branch_one=fixed", {"learner.options.branch_one": "fixed"}),
        (
            "start_from=runs/first data.data_dir=null",
            {"start_from": str(Path("runs/first").resolve()), "data.data_dir": None},
        ),
    ],
)
def test_what_is_typed_is_what_comes(typed, expected):
    config = composed(typed)
    assert {key: value(config, key) for key in expected} == expected


@pytest.mark.parametrize("paths", [("a=b", "a,b", "my runs (1)"), ("${HOME}", "it's", "[x]"), ("C:\\runs", "ünï", "1")])
def test_a_path_may_be_any_text(paths):
    config = compose([f"{key}={path}" for key, path in zip(("out", "start_from", "data.data_dir"), paths, strict=True)])
    out, *others = paths
    assert config.out == out
    # From wherever the run goes on, these are the same folders.
    assert [config.start_from, config.data.data_dir] == [str(Path(path).resolve()) for path in others]


def test_protocols_are_split_once_the_classes_are_known():
    assert composed("protocol=half-7").protocol.protocol(28).sizes == (14, 2, 2, 2, 2, 2, 2, 2)
    assert composed("protocol.first=4 protocol.increment=2").protocol.protocol(10).sizes == (4, 2, 2, 2)
    with pytest.raises(ProtocolError, match="half-7"):
        composed("protocol=half-7").protocol.protocol(10)
    with pytest.raises(ProtocolError, match=r"no protocol 'halve-5'.*Did you mean 'half-5'"):
        composed("protocol=halve-5").protocol.protocol(10)


def test_one_configuration_does_not_leak_into_the_next():
    compose(["learner.temperature=9", "aligner.hidden=[1]"])
    assert (compose().learner.options["temperature"], compose().aligner.hidden) == (2.0, (64, 64))


# --- presets and choices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("number", "data"), list(enumerate(TREE.choices("data"))))
def test_every_preset_fits_every_data_set_and_every_choice(preset, number, data):
    typed = [f"preset={preset}", f"data={data}"] + ["data.path=x"] * (data == "folder")
    # There are more data sets than choices of any other group, so that each choice meets each preset.
    choices = {group: TREE.choices(group) for group in ("learner", "train", "memory", "aligner")}
    picked = {group: names[number % len(names)] for group, names in choices.items()}
    config = compose([*typed, *(f"{group}={choice}" for group, choice in picked.items())])
    small = {"smoke": "resnet14", "small": "resnet20", "paper": "resnet32"}[preset]
    models = {"digits": "conv", "mnist": "conv", "fashion-mnist": "conv", "cifar100": small, "tiny-imagenet": small}
    assert (config.preset, config.data.name) == (preset, data)
    assert config.model.name == models.get(data, "resnet18")
    assert config.learner.name == picked["learner"].removesuffix("-implicit")
    assert (config.train.schedule, config.aligner.space) == (picked["train"], picked["aligner"])
    assert (config.memory.budget is not None) == (picked["memory"] == "budget")
    assert (config.memory.per_class is not None) == (picked["memory"] == "per-class")


def test_no_other_group_has_more_choices_than_there_are_data_sets():
    others = ("learner", "train", "memory", "aligner")
    assert max(len(TREE.choices(group)) for group in others) <= len(TREE.choices("data"))


def test_data_sets_learners_and_models_are_those_that_exist():
    assert set(TREE.choices("data")) == set(BENCH_DATASETS)
    assert {name.removesuffix("-implicit") for name in TREE.choices("learner")} == set(LEARNERS)
    assert [composed(f"model={name}").model.name for name in TREE.choices("model")] == sorted(BACKBONES)


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_the_options_of_a_learner_are_its_own(name):
    assert composed(f"learner={name}").learner.options == dict(LEARNERS[name].defaults)


def test_the_paper_preset_is_the_published_one():
    cifar = composed("preset=paper data=cifar100 learner=aanet")
    assert (cifar.train.first_epochs, cifar.train.epochs, cifar.train.milestones) == (160, 160, (0.5, 0.75))
    assert (cifar.train.schedule, cifar.train.weight_decay, cifar.train.precision) == ("steps", 5e-4, "auto")
    assert (cifar.memory.budget, cifar.memory.per_class) == (2000, None)
    assert (cifar.learner.options["branch_one"], cifar.learner.options["branch_two"]) == ("free", "scaled")
    assert cifar.aligner == AlignerConfig(
        iterations=1500,
        hidden=(64, 64),
        learning_rate=1e-4,
        batch_size=128,
        steps=30,
        step_size=0.1,
        noise=0.0,
        half_step=False,
        ema_decay=0.89,
        space="latent",
        ridge_penalty=0.1,
        energy_quantile=0.05,
        passes=8,
        mixup=None,
    )
    for learner in ("aanet", "aanet-implicit"):
        imagenet = composed(f"preset=paper data=imagenet100 learner={learner}")
        assert (imagenet.train.epochs, imagenet.train.weight_decay) == (90, 1e-4)
        assert [round(part * 90) for part in imagenet.train.milestones] == [29, 60]
        assert (imagenet.learner.options["branch_one"], imagenet.learner.options["branch_two"]) == ("scaled", "fixed")
