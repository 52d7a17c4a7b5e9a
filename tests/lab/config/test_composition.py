"""Settings from files and `key=value` texts: what comes of them, and what is said of mistakes."""

from __future__ import annotations

import copy
import inspect
import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import NAMED, answer, fuzz

from elign import ElignError, EnergyAligner
from elign.lab.config import ConfigError, RunConfig, compose, describe
from elign.lab.config.schema import TREE
from elign.lab.data import DATASETS
from elign.lab.data.scenario import ORDER_SEED
from elign.lab.learners import LEARNERS
from elign.lab.models import BACKBONES
from elign.lab.runs.experiment import protocol_of

PRESETS = ("paper", "small", "smoke")


@cache
def composed(text: str = "") -> RunConfig:
    return compose(text.split())


def value(config: object, key: str) -> object:
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", {"learner.name": "icarl", "data.name": "digits", "preset": "smoke", "model.name": "conv", "seed": 0}),
        ("", {"protocol.name": "half-5", "data.order": ORDER_SEED, "memory.per_class": 10, "aligner.iterations": 200}),
        ("", {"train.first_epochs": 12, "train.epochs": 6, "train.fast": False, "train.threads": 1}),
        ("data=cifar100 protocol=half-5", {"preset": "small", "model.name": "resnet20", "train.fast": False}),
        ("learner=lucir preset=smoke out=DIR", {"learner.name": "lucir", "out": "DIR"}),
        ("memory=none", {"memory.budget": None, "memory.per_class": None}),
        ("memory=budget", {"memory.budget": 2000, "memory.per_class": None}),
        ("memory=per-class memory.per_class=7", {"memory.budget": None, "memory.per_class": 7}),
        ("preset=paper memory.per_class=7", {"memory.budget": None, "memory.per_class": 7}),
        ("memory.budget=50", {"memory.budget": 50, "memory.per_class": None}),
        ("memory.selection=random", {"memory.selection": "random", "memory.per_class": 10}),
        ("aligner.hidden=[512,512] aligner.steps=60", {"aligner.hidden": (512, 512), "aligner.steps": 60}),
        ("aligner.hidden=[] aligner.mixup=0.3", {"aligner.hidden": (), "aligner.mixup": 0.3}),
        ("aligner=logits", {"aligner.space": "logits"}),
        ("preset=paper data=cifar100 model=resnet14", {"model.name": "resnet14", "train.epochs": 160}),
        ("train=steps train.epochs=5", {"train.schedule": "steps", "train.epochs": 5, "train.first_epochs": 12}),
        ("train.fast=true train.threads=2", {"train.fast": True, "train.threads": 2}),
        ("train.learning_rate=1e-2", {"train.learning_rate": 0.01}),
        ("protocol=b50-5", {"protocol.name": "half-5"}),
        ("protocol.first=4 protocol.increment=2", {"protocol.name": None, "protocol.first": 4}),
        ("data=folder data.path=my/images", {"data.path": str(Path("my/images").resolve()), "model.name": "resnet18"}),
        ("data.order=null", {"data.order": None}),
        ("learner.temperature=4", {"learner.options.temperature": 4.0}),
        ("learner=aanet", {"learner.name": "aanet", "learner.options.less_forget": 5.0}),
        ("learner=aanet-implicit", {"learner.name": "aanet", "learner.options.less_forget": 0.0}),
        ("start_from=one data.data_dir=null", {"start_from": str(Path("one").resolve()), "data.data_dir": None}),
    ],
)
def test_what_is_typed_is_what_comes(typed, expected):
    assert {key: value(composed(typed), key) for key in expected} == expected


@pytest.mark.parametrize("paths", [("a=b", "a,b", "my runs (1)"), ("${HOME}", "it's", "[x]"), ("C:\\runs", "ünï", "1")])
def test_a_path_may_be_any_text(paths):
    config = compose([f"{key}={path}" for key, path in zip(("out", "start_from", "data.data_dir"), paths, strict=True)])
    assert config.out == paths[0]
    # From wherever the run is resumed, these are the same folders.
    assert [config.start_from, config.data.data_dir] == [str(Path(path).resolve()) for path in paths[1:]]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("number", "data"), list(enumerate(TREE.choices("data"))))
def test_every_preset_fits_every_data_set_and_every_choice(preset, number, data):
    typed = [f"preset={preset}", f"data={data}"] + ["data.path=x"] * (data == "folder")
    # There are more data sets than choices of any other group, so that each choice meets each preset.
    choices = {group: TREE.choices(group) for group in ("learner", "train", "memory", "aligner")}
    assert max(map(len, choices.values())) <= len(TREE.choices("data"))
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


def test_the_paper_preset_is_the_published_one():
    cifar = composed("preset=paper data=cifar100 learner=aanet")
    assert (cifar.train.first_epochs, cifar.train.epochs, cifar.train.milestones) == (160, 160, (0.5, 0.75))
    assert (cifar.train.schedule, cifar.train.weight_decay) == ("steps", 5e-4)
    assert (cifar.memory.budget, cifar.memory.per_class) == (2000, None)
    assert (cifar.learner.options["branch_one"], cifar.learner.options["branch_two"]) == ("free", "scaled")
    own = {"space": "latent", "ridge_penalty": 0.1, "energy_quantile": 0.05, "passes": 8, "mixup": None}
    own["rivals"] = False
    published = {"iterations": 1500, "hidden": [64, 64], "learning_rate": 1e-4, "batch_size": 128, "steps": 30}
    published |= {"step_size": 0.1, "noise": 0.0, "half_step": False, "ema_decay": 0.89}
    assert describe(cifar.aligner) == own | published
    for learner in ("aanet", "aanet-implicit"):
        imagenet = composed(f"preset=paper data=imagenet100 learner={learner}")
        assert (imagenet.train.epochs, imagenet.train.weight_decay) == (90, 1e-4)
        assert [round(part * 90) for part in imagenet.train.milestones] == [29, 60]
        assert (imagenet.learner.options["branch_one"], imagenet.learner.options["branch_two"]) == ("scaled", "fixed")


def test_data_sets_learners_and_models_are_those_that_exist():
    assert set(TREE.choices("data")) == set(DATASETS)
    assert {name.removesuffix("-implicit") for name in TREE.choices("learner")} == set(LEARNERS)
    assert [composed(f"model={name}").model.name for name in TREE.choices("model")] == sorted(BACKBONES)
    for name in LEARNERS:
        learner = composed(f"learner={name}").learner
        assert {**dict(learner), **learner.options} | LEARNERS[name].settings() == {**dict(learner), **learner.options}


def test_the_aligners_options_are_those_of_its_class():
    config = describe(composed("data=cifar100").aligner)
    options = inspect.signature(EnergyAligner).parameters
    assert set(options) - {"seed"} < set(config)
    published = json.loads(json.dumps({name: option.default for name, option in options.items() if name != "seed"}))
    assert {name: config[name] for name in published} == published


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("lerner=icarl", "no setting 'lerner'. Did you mean 'learner'?"),
        ("aligner.step=60", "no setting 'aligner.step'. Did you mean 'aligner.steps'?"),
        ("epochs=3", "Did you mean 'train.epochs'?"),
        ("batch_size=3", "Did you mean 'train.batch_size' or 'aligner.batch_size'?"),
        ("train.precision=32", "train.fast=true"),
        ("--learner=icarl", "Did you mean 'learner'?"),
        ("+seed=1", "Did you mean 'seed'?"),
        ("images=cifar", "no setting 'images'"),
        ("choices=x", "no setting 'choices'"),
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
        ("learner.temperature=0", "learner.temperature"),
        ("learner=aanet learner.branch_two=loose", "learner.branch_two"),
        ("learner.freeze_old=1", "learner.freeze_old must be true or false, not 1"),
        ("train.epochs=many", "train.epochs must be a whole number, not 'many'"),
        ("train.epochs=0", "train.epochs must be greater than or equal to 1, not 0"),
        ("train.learning_rate=nan", "train.learning_rate must be "),
        ("train.milestones=[0.7,0.2]", "train.milestones must be rising"),
        ("train.accelerator=", "train.accelerator must be 'auto', 'cpu', 'cuda' or 'mps'"),
        ("aligner.hidden=64", "aligner.hidden must be a list, such as [64,64] or [], not 64"),
        ("aligner.hidden=[0]", "aligner: hidden"),
        ("aligner.energy_quantile=2", "aligner: quantile must be"),
        ("memory.budget=3 memory.per_class=3", "cannot both be given"),
        ("protocol.first=3", "must be given together"),
        ("protocol=null", "needs a name"),
        ("data=folder", "data=folder needs data.path=FOLDER"),
        ("seed=-1", "seed must be greater than or equal to 0"),
        ("seed=1 seed=2", "seed is given twice: '1' and '2'"),
        ("protocol=half-5 protocol.name=half-5", "given twice"),
        ("icarl", "'icarl' is no setting. Write key=value"),
        ("=3", "is no setting"),
        ("seed=1,2", "seed must be a whole number, not '1,2'"),
        ("seed=[", "cannot be read"),
        ("seed=${data.order}", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(typed, complaint):
    with pytest.raises(ConfigError) as caught:
        composed(typed)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, ElignError)


# Whatever somebody may type after `elign run`, and whatever a run's file may hold as its settings.
KEYS = ("learner", "protocol", "model", "preset", "seed", "out", "start_from", "data.path", "train.epochs")
KEYS += ("aligner.hidden", "train.milestones", "train.fast", "memory.budget", "learner.temperature", "data.order")
PIECES = (*"[]{}:,=\\'\"", "${", "oc.env:HOME", "1e999", "9" * 310, "-1", "null", "~x")
VALUES = st.text(max_size=12) | st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
SCALARS = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=6)
JSON = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3),
    max_leaves=6,
)


@fuzz(50)
@given(settings=st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=9), VALUES), min_size=1, max_size=2))
def test_whatever_is_typed_is_a_configuration_or_refused_in_a_line(settings):
    found = answer(lambda: compose([f"{key}={value}" for key, value in settings]))
    assert found is None or isinstance(found, RunConfig)


@fuzz(150)
@given(data=st.data())
def test_whatever_a_file_holds_is_a_configuration_or_refused(data):
    values = copy.deepcopy(describe(compose()))
    group = data.draw(st.sampled_from(list(values)))
    if isinstance(values[group], dict) and data.draw(st.booleans()):
        values[group][data.draw(st.sampled_from([*values[group], "x"]))] = data.draw(JSON)
    else:
        values[group] = data.draw(JSON)
    found = answer(lambda: TREE.from_dict(values))
    assert found is None or isinstance(found, RunConfig)


@pytest.mark.parametrize(
    "typed",
    [
        f"train.epochs={'9' * 400}",
        f"train.learning_rate={'9' * 400}",
        f"train.epochs={'9' * 5000}",
        "data.path=~no-such-user/x",
        "data.path=a\0b",
        f"aligner.hidden={'[' * 2000}",
        "train.epochs=${train.epochs}",
        "train.epochs=${oc.env:NO_SUCH_VARIABLE}",
        "aligner.hidden=${aligner}",
        f"protocol=half-{'9' * 5000}",
    ],
)
def test_absurd_values_are_refused_in_a_line(typed):
    with pytest.raises(NAMED) as caught:
        protocol_of(compose([typed]), 10)
    assert "\n" not in str(caught.value)
