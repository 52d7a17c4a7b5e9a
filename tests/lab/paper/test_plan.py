"""Plans of all experiments: how many runs and evaluations they have, and what they share. Nothing is trained here."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from elign.lab.config.composition import ConfigError
from elign.lab.data.scenario import ProtocolError
from elign.lab.paper.comparison import differences, published_config, scale_note
from elign.lab.paper.plan import Job, Plan, all_jobs, plan_table, planned_evaluation, planned_run, time_text
from elign.lab.paper.reproduction import plan_experiments
from elign.lab.paper.request import NAMES, Request, read_request
from elign.lab.runs.experiment import CLASSIFICATION, DETECTION


def plan(out, *words):
    return plan_experiments(*read_request([*words, f"out={out}"]))


def count(jobs):
    keys = [job.key for job in jobs]
    assert len(set(keys)) == len(keys)
    return sum(key.startswith("run ") for key in keys), sum(key.startswith("evaluation ") for key in keys)


def run(learner, protocol="half-5", seed=0, *settings, data="cifar100", preset="small", benchmark=CLASSIFICATION):
    return planned_run(Request(preset=preset, settings=settings), benchmark, learner, data, protocol, seed)


@pytest.mark.parametrize(
    ("words", "runs", "evaluations"),
    [
        ("table1 data=cifar100 protocol=half-5,equal-5 seeds=2", 12, 0),
        ("table1 data=cifar100 protocol=b50-5 learner=icarl", 3, 0),
        # The published exception: a linear energy for AANet with 10 and 25 tasks.
        ("table1 data=imagenet100 learner=aanet seeds=1", 6, 2),
        ("table1 preset=smoke", 6, 0),
        # One of the printed settings is the run's own.
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
        ("toy", 6, 0),
        ("toy preset=smoke", 1, 0),
        ("dimensions seeds=2", 8, 0),
        ("table2 preset=smoke", 18, 0),
        ("table2 preset=paper seeds=1", 18, 0),
        # Only the rows of iOD depend on the aligner.
        ("table2 preset=smoke protocol=5+5 seeds=2 aligner.steps=5", 12, 2),
        ("table2 data=voc data.path=. protocol=3+2 learner=iod seeds=2", 2, 0),
    ],
)
def test_sizes(tmp_path, words, runs, evaluations):
    (experiment,) = plan(tmp_path, *words.split())
    assert count(experiment.jobs) == (runs, evaluations)
    assert not any(job.done for job in experiment.jobs)
    assert all(job.seconds is None for job in experiment.jobs)
    assert list(tmp_path.iterdir()) == []


def test_experiments_share_runs_and_first_tasks(tmp_path):
    words = ("table1", "langevin", "logits", "mixup", "data=cifar100", "protocol=half-5", "seeds=2")
    plans = plan(tmp_path, *words)
    assert count(all_jobs(plans)) == (6, 2 * (5 + 3 + 4))
    assert plans[0].remarks == ("table1: 6 runs share 2 first tasks",)
    (detectors,) = plan(tmp_path, "table2", "preset=smoke", "protocol=5+5,5+3+2", "learner=ilod,finetune")
    assert detectors.remarks == ("table2: 4 runs share 1 first task",)


def test_all_is_everything_but_detection(tmp_path):
    plans = plan(tmp_path, "all", "preset=smoke")
    assert [one.name for one in plans] == [name for name in NAMES if name != "table2"]
    jobs = all_jobs(plans)
    assert count(jobs)[0] == 7 + 4
    assert sum("toy" in job.group for job in jobs) == 4
    assert sum(job.key.startswith("compute") for job in jobs) == 1


def test_first_tasks_that_are_the_same():
    def key(*arguments):
        return run(*arguments).first_task

    assert key("icarl") == key("aanet-implicit", "half-25") == key("lucir", "half-10", 0, "train.epochs=1")
    different = [key("icarl", "half-5", 1), key("icarl", "equal-5"), key("icarl", "equal-10")]
    assert len({key("icarl"), *different, key("icarl", "half-5", 0, "train.first_epochs=1")}) == 5


def test_first_tasks_of_detectors_that_are_the_same():
    def key(learner, protocol="5+5", *settings):
        return run(learner, protocol, 0, *settings, data="digit-scenes", benchmark=DETECTION).first_task

    plain = {key(learner) for learner in ("joint", "finetune", "ilod", "faster-ilod")} | {key("ilod", "5+3+2")}
    assert len(plain) == 1
    others = [key("ore"), key("iod"), key("iod", "5+5", "learner.warp_images=4"), key("ilod", "8+2")]
    assert len({*plain, *others}) == 5


def test_the_runs_own_aligner_needs_no_evaluation():
    assert planned_evaluation(run("icarl"), ["aligner.steps=30"]).is_own
    assert not planned_evaluation(run("icarl"), ["aligner.steps=60"]).is_own


def test_published_scale_of_equal_tasks():
    equal = run("icarl", "equal-5", preset="paper").config
    assert (equal.data.order, equal.model.name) == (None, "resnet14")
    assert run("icarl", "equal-5", 0, "data.order=7", preset="paper").config.data.order == 7
    assert run("icarl", preset="paper").config.model.name == "resnet32"


def test_every_difference_of_scale_is_named():
    found = differences([(run("icarl").config, published_config(CLASSIFICATION, "icarl", "cifar100", "half-5"))])
    assert found[:4] == [
        "backbone: resnet20 instead of resnet32",
        "epochs, first task / others: 12/8 instead of 160/160",
        "exemplars: 20 of each class instead of 2000 in all",
        "train.schedule: one-cycle instead of steps",
    ]
    assert not any("milestones" in text for text in found)
    assert scale_note("small", found).startswith("preset=small, not the paper's scale: backbone")
    assert "published settings" in scale_note("paper", [])


def test_the_published_scale_has_no_difference_but_what_is_typed():
    for protocol in ("half-5", "equal-5"):
        own = run("aanet", protocol, data="imagenet100", preset="paper").config
        assert differences([(own, published_config(CLASSIFICATION, "aanet", "imagenet100", protocol))]) == []
    own = planned_evaluation(run("icarl", preset="paper"), ["aligner.steps=60"]).config
    pair = (own, published_config(CLASSIFICATION, "icarl", "cifar100", "half-5"))
    assert differences([pair]) == ["aligner.steps: 60 instead of 30"]
    assert differences([pair], varied=["aligner.steps"]) == []
    pairs = []
    for protocol, typed in (("10+10", ()), ("15+5", ()), ("19+1", ("model.nms=0.5", "train.epochs=3"))):
        own = run("iod", protocol, 0, *typed, data="voc2007", preset="paper", benchmark=DETECTION).config
        pairs.append((own, published_config(DETECTION, "iod", "voc2007", protocol)))
    assert differences(pairs[:2]) == []
    assert differences(pairs) == ["epochs, first task / others: 29/3 instead of 29/29", "model.nms: 0.5 instead of 0.3"]
    assert (pairs[2][0].aligner.hidden, pairs[0][0].aligner.step_size) == ((), 0.01)


def test_splits_and_data_of_detectors_at_each_scale(tmp_path):
    def groups(*words):
        return {job.group for job in plan(tmp_path, "table2", "learner=ore", "seeds=1", *words)[0].jobs}

    scenes = {f"train ore on digit-scenes, {split}" for split in ("5+5", "8+2", "9+1")}
    pictures = {f"train ore on voc2007, {split}" for split in ("10+10", "15+5", "19+1")}
    assert groups() == groups("preset=smoke") == groups("preset=paper", "data=digit-scenes") == scenes
    assert groups("preset=paper") == groups("data=voc2007") == pictures
    with pytest.raises(ProtocolError, match="split of 20 classes, but there are 10"):
        groups("protocol=15+5")


@pytest.mark.parametrize(("words", "data"), [("implicit", "imagenet100"), ("table2 preset=paper", "voc2007")])
def test_missing_data_is_said_with_the_plan(tmp_path, words, data):
    (found,) = plan(tmp_path, *words.split(), "seeds=1", f"data.data_dir={tmp_path}")
    assert found.missing[0].startswith(f"the data set {data} is not in {tmp_path}")
    (elsewhere,) = plan(tmp_path, *words.split(), "seeds=1", f"data.path={tmp_path}")
    assert elsewhere.missing == ()


def test_jobs_of_several_experiments_are_each_done_once():
    def job(key, seconds=None, done=False):
        return Job(key, "g", done, seconds, lambda console: None)

    def experiment(name, *jobs):
        return Plan(name, "title", jobs, list, Request())

    plans = [experiment("one", job("a", 50.0), job("b", 3000.0)), experiment("two", job("b", 3000.0), job("c"))]
    assert [one.key for one in all_jobs(plans)] == ["a", "b", "c"]
    console = Console(width=80, file=io.StringIO())
    console.print(plan_table(plans).to_rich())
    shown = " ".join(console.file.getvalue().split())
    assert "two: title (shares 1 with the above) g 1 0 1 unknown in all 3 0 3 51 min + unknown" in shown
    assert time_text([180_000]) == "50 h"


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
    assert toy.request.csv_file("toy").name == "toy-smoke.csv"
    assert langevin.request.csv_file("langevin").name == "langevin-smoke-learner=lucir-train.epochs=1.csv"


def test_long_restrictions_make_short_names_that_differ():
    many = Request(settings=tuple(f"train.x{n}=1" for n in range(30)))
    one, other = (each.csv_file("t").name for each in (many, replace(many, settings=(*many.settings, "train.y=1"))))
    assert len(one) < 140
    assert one != other
