"""Plans of all experiments: how many runs and readings they have, and what they share. Nothing is trained here."""

import pytest

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.reproduce.base_runs import base_run, evaluation
from elign.lab.reproduce.catalogue import EXPERIMENTS, planned
from elign.lab.reproduce.jobs import all_jobs, plan_table, time_text
from elign.lab.reproduce.request import Request, read_request

NAMES = tuple(EXPERIMENTS)


def plan(tmp_path, *words):
    names, request = read_request(NAMES, [*words, f"out={tmp_path}"])
    return planned(names, request)


def count(experiment):
    runs = [job for job in experiment.jobs if job.key.startswith("run ")]
    readings = [job for job in experiment.jobs if job.key.startswith("evaluation ")]
    assert len({job.key for job in experiment.jobs}) == len(experiment.jobs)
    return len(runs), len(readings)


@pytest.mark.parametrize(
    ("words", "runs", "readings"),
    [
        ("table1 data=cifar100 protocol=half-5,equal-5 seeds=2", 12, 0),
        ("table1 data=cifar100 protocol=half-5 learner=icarl", 3, 0),
        # The published exception: a linear energy for AANet with 10 and 25 tasks.
        ("table1 data=imagenet100 learner=aanet seeds=1", 6, 2),
        ("table1 preset=smoke", 6, 0),
        # Of six printed settings one is the base run's own.
        ("langevin preset=smoke", 1, 5),
        ("langevin protocol=half-5", 3, 15),
        ("iterations preset=smoke", 1, 6),
        ("iterations protocol=half-5 seeds=1", 1, 5),
        ("architecture preset=smoke", 1, 5),
        ("mixup preset=smoke", 1, 4),
        ("logits preset=smoke", 3, 3),
        ("implicit preset=smoke", 2, 0),
        ("label-free seeds=2", 12, 0),
        ("label-free preset=smoke learner=icarl memory=none", 2, 0),
        ("imagenet1k seeds=1", 9, 0),
        ("imagenet1k preset=smoke learner=lucir", 1, 0),
    ],
)
def test_sizes(tmp_path, words, runs, readings):
    (experiment,) = plan(tmp_path, *words.split())
    assert count(experiment) == (runs, readings)
    assert not any(job.done for job in experiment.jobs)
    assert all(job.seconds is None for job in experiment.jobs)


@pytest.mark.parametrize(("words", "jobs"), [("toy", 6), ("toy preset=smoke", 1), ("dimensions seeds=2", 8)])
def test_toys(tmp_path, words, jobs):
    (experiment,) = plan(tmp_path, *words.split())
    assert len(experiment.jobs) == jobs


def test_compute(tmp_path):
    assert len(plan(tmp_path, "compute")[0].jobs) == 4


def test_experiments_share_runs_and_first_tasks(tmp_path):
    words = ("table1", "langevin", "logits", "mixup", "data=cifar100", "protocol=half-5", "seeds=2")
    experiments = plan(tmp_path, *words)
    keys = [job.key for job in all_jobs(experiments)]
    assert len(keys) == len(set(keys))
    assert sum(key.startswith("run ") for key in keys) == 6
    assert sum(key.startswith("evaluation ") for key in keys) == 2 * (5 + 3 + 4)
    assert experiments[0].remarks == ("table1: 6 runs share 2 first tasks",)


def test_all_is_everything_but_detection_and_toy_and_dimensions_share(tmp_path):
    experiments = plan(tmp_path, "all", "preset=smoke")
    assert [one.name for one in experiments] == [name for name in NAMES if name != "table2"]
    jobs = all_jobs(experiments)
    assert sum(job.key.startswith("run ") for job in jobs) == 7
    assert sum(job.group.startswith("toy ") for job in jobs) == 4


def test_first_tasks_that_are_the_same():
    def key(learner, protocol, seed=0, *settings):
        return base_run(learner, "cifar100", protocol, preset="small", seed=seed, settings=settings).first_task

    assert key("icarl", "half-5") == key("aanet-implicit", "half-25") == key("lucir", "half-10", 0, "train.epochs=1")
    assert key("icarl", "half-5") != key("icarl", "half-5", 1)
    assert key("icarl", "half-5") != key("icarl", "equal-5")
    assert key("icarl", "equal-10") != key("icarl", "equal-5")
    assert key("icarl", "half-5") != key("icarl", "half-5", 0, "train.first_epochs=1")


def test_the_runs_own_aligner_needs_no_evaluation():
    run = base_run("icarl", "cifar100", "half-5", preset="small", seed=0)
    assert evaluation(run, ["aligner.steps=30"]).overrides == ()
    assert evaluation(run, ["aligner.steps=60"]).name == "aligner.steps=60"


def test_published_scale_of_equal_tasks():
    run = base_run("icarl", "cifar100", "equal-5", preset="paper", seed=0)
    assert run.config.data.order is None
    assert run.config.model.name == "resnet14"
    mine = base_run("icarl", "cifar100", "equal-5", preset="paper", seed=0, settings=["data.order=7"])
    assert mine.config.data.order == 7
    assert base_run("icarl", "cifar100", "half-5", preset="paper", seed=0).config.model.name == "resnet32"


def test_missing_data_is_said_with_the_plan(tmp_path):
    (experiment,) = plan(tmp_path, "implicit", "seeds=1", f"data.data_dir={tmp_path}")
    assert "imagenet100 is not in" in experiment.missing[0]
    assert plan(tmp_path, "implicit", "seeds=1", "data=cifar100")[0].missing == ()


def test_plan_table_says_what_is_unknown(tmp_path):
    experiments = plan(tmp_path, "langevin", "preset=smoke")
    assert plan_table(experiments).row_count == 4
    assert time_text(experiments[0].jobs) == "unknown"
    assert time_text([]) == "-"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("langvein", "Did you mean 'langevin'"),
        ("", "Say what to reproduce"),
        ("table1 preset=smal", "Did you mean 'small'"),
        ("table1 data=cifar10", "Did you mean 'cifar100'"),
        ("table1 learner=icral", "Did you mean 'icarl'"),
        ("table1 protocol=half-7", "half-5"),
        ("table1 protokol=half-5", "Did you mean 'protocol'"),
        ("table1 seed=3", "seeds=N"),
        ("table1 seeds=none", "whole number"),
        ("table1 seeds=1 seeds=2", "given twice"),
        ("table1 train.epoch=3 data=cifar100", "train.epochs"),
        ("langevin aligner.steps=3", "varies aligner.steps itself"),
        ("langevin protocol=equal-5", "is not part of this experiment"),
        ("toy data=cifar100", "does not take data=cifar100"),
        ("compute learner=icarl", "does not take learner=icarl"),
        ("table2 toy", "a command of its own, without toy"),
        ("all table2", "a command of its own, without all"),
        ("table2 learner=icarl", "no learner 'icarl'"),
        ("table2 data=digits", "Did you mean 'digit-scenes'"),
        ("table2 protocol=half-5", "such as 15\\+5"),
        ("table2 protocol=10", "such as 15\\+5"),
        ("table2 data=coco data.path=. ", "has no usual splits"),
        ("table2 data=digit-scenes,voc2007", "one data set at a time"),
        ("table2 train.epoch=3", "train.epochs"),
        ("table2 mixup=1", "'elign detect run'"),
        ("table2 learner.warp_every=2", "'joint' has no setting"),
    ],
)
def test_mistakes(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, *words.split())


def test_settings_of_others_are_remarked_on_where_there_are_others(tmp_path):
    toy, langevin = plan(tmp_path, "toy", "langevin", "preset=smoke", "learner=lucir", "train.epochs=1")
    assert toy.remarks == ("toy: learner=lucir, train.epochs=1 does not concern it",)
    assert toy.request.slug == ""
    assert langevin.request.slug == "-learner=lucir-train.epochs=1"


def test_long_restrictions_make_short_names_that_differ():
    one, other = (Request(settings=tuple(f"train.x{n}=1" for n in range(30 + more))) for more in (0, 1))
    assert len(one.slug) < 120
    assert one.slug != other.slug
