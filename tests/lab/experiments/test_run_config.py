"""The configuration of a run: what can be typed, what cannot, and what decides whether two runs are the same."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from pathlib import Path

import pytest

from eli import EliError
from eli.lab.data.bench_dataset import BENCH_DATASETS
from eli.lab.data.protocol import ProtocolError
from eli.lab.experiments import config_files
from eli.lab.experiments.run_config import (
    TREE,
    AlignerConfig,
    ConfigError,
    RunConfig,
    compose,
    describe,
    flatten,
    from_dict,
    with_aligner,
)
from eli.lab.learners import LEARNERS
from eli.lab.models import BACKBONES

PRESETS = ("paper", "small", "smoke")


@cache
def composed(text: str = "") -> RunConfig:
    return compose(text.split())


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
    assert isinstance(caught.value, EliError)


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


def test_one_configuration_does_not_leak_into_the_next():
    compose(["learner.temperature=9", "aligner.hidden=[1]"])
    assert (compose().learner.options["temperature"], compose().aligner.hidden) == (2.0, (64, 64))


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


@pytest.fixture
def afresh():
    """Nothing is remembered from other tests, so that hydra is really asked."""
    config_files._compose_files.cache_clear()


@pytest.mark.usefixtures("afresh")
def test_hydra_is_left_as_it_was_found():
    from hydra.core.global_hydra import GlobalHydra

    compose()
    assert not GlobalHydra.instance().is_initialized()
    with pytest.raises(ConfigError):
        composed("seed=${nope}")
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.usefixtures("afresh")
def test_it_can_be_composed_inside_a_program_of_hydras_own():
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_module("eli.lab.config", version_base="1.3"):
        theirs = GlobalHydra.instance().hydra
        assert compose(["seed=4"]).seed == 4
        assert GlobalHydra.instance().hydra is theirs


@pytest.mark.usefixtures("afresh")
def test_threads_do_not_get_each_others_settings():
    with ThreadPoolExecutor(4) as pool:
        configs = list(pool.map(lambda seed: compose([f"preset={PRESETS[seed % 3]}", f"seed={seed}"]), range(6)))
    assert [config.seed for config in configs] == list(range(6))
    assert [config.preset for config in configs] == [*PRESETS, *PRESETS]


def test_to_import_it_is_not_to_import_hydra():
    code = "import sys, eli.lab.experiments.run_config; print('hydra' in sys.modules, 'omegaconf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


@pytest.mark.usefixtures("afresh")
def test_nothing_is_printed_or_written(tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.chdir(tmp_path)
    compose(["seed=2"])
    with pytest.raises(ConfigError):
        composed("seed=[")
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
    assert not recwarn.list


@pytest.mark.parametrize("group", ["learner", "data", "protocol", "model", "train", "memory", "aligner", "preset"])
def test_the_files_are_part_of_the_package(group):
    assert resources.files("eli.lab.config").joinpath("config.yaml").is_file()
    assert TREE.choices(group)
