import pytest
import torch

from elign.lab.config.schema import compose
from elign.lab.data.base import MemorySplit
from elign.lab.learners import make_learner
from elign.lab.models import make_backbone
from elign.lab.training.device import Engine
from elign.lab.training.trainer import ClassifierTraining, DivergedError, Step, Task, Trainer, rate_share


@pytest.fixture(scope="module")
def engine():
    return Engine(accelerator="cpu")


@pytest.fixture
def split():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    images = torch.randint(256, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images[:, :, 0, 0] = (40 * labels).unsqueeze(1).to(torch.uint8)
    return MemorySplit(images, labels, mean=[0.5], std=[0.25], crop_padding=1, flip=False)


class Diary:
    def __init__(self):
        self.steps, self.states = [], {}

    def on_step(self, progress):
        self.steps.append(progress)

    def checkpoint(self, step, state):
        self.states[step] = {name: value.clone() for name, value in state().items()}


def fit(learner, task, split, config, *, engine, seed=0, resume=None):
    """Train a task; return what the callback was told."""
    diary = Diary()
    training = ClassifierTraining(learner, task, split, config, engine=engine, seed=seed)
    Trainer(learner, training, config, engine=engine, callback=diary).fit(resume)
    return diary


def config(*overrides):
    return compose(["data=digits", "train.first_epochs=3", "train.epochs=3", "train.batch_size=16", *overrides]).train


def learner_for(name="finetune", tasks=(4,)):
    torch.manual_seed(0)
    learner = make_learner(name, lambda: make_backbone("conv", image_shape=(1, 8, 8)))
    for size in tasks:
        learner.grow(size)
    return learner


def task(split, number=0):
    labels = split.labels
    if number == 0:
        return Task(0, range(4), torch.nonzero(labels < 4).flatten(), torch.empty(0, dtype=torch.int64))
    return Task(1, range(4, 6), torch.nonzero(labels >= 4).flatten(), torch.nonzero(labels < 4).flatten()[:8])


def test_the_progress_counts_epochs_and_steps(engine, split):
    learner = learner_for()
    diary = fit(learner, task(split), split, config(), engine=engine)
    assert [(m.epoch, m.step) for m in diary.steps] == [(e, s) for e in range(3) for s in (1, 2, 3)]
    assert all((m.task, m.epochs, m.steps) == (0, 3, 3) for m in diary.steps)
    assert diary.steps[-1].loss < diary.steps[0].loss
    assert not learner.training
    assert list(diary.states) == [Step(e, s) for e in range(3) for s in (1, 2, 3)]


@pytest.mark.parametrize("step", [Step(0, 1), Step(0, 2), Step(1, 1), Step(2, 2)])
@pytest.mark.parametrize("name", ["icarl", "aanet"])
def test_going_on_from_a_kept_state_is_exact(engine, split, name, step):
    def trained(resume=None):
        learner = learner_for(name, tasks=(4, 2))
        diary = fit(learner, task(split, 1), split, config(), engine=engine, seed=3, resume=resume)
        return learner.state(), diary

    whole, diary = trained()
    again, later = trained(resume=(step, diary.states[step]))
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    every = [(epoch, number) for epoch in range(3) for number in (1, 2)]
    assert [(m.epoch, m.step) for m in later.steps] == every[every.index(step) + 1 :]
    assert all(m.first_epoch == step.epoch for m in later.steps)


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_the_seed_decides_order_and_augmentation(engine, split, seed, same):
    one, two = learner_for(), learner_for()
    fit(one, task(split), split, config(), engine=engine)
    fit(two, task(split), split, config(), engine=engine, seed=seed)
    assert torch.equal(one.model.head.weight, two.model.head.weight) == same


def test_new_images_and_rehearsed_ones_are_both_seen(engine, split, monkeypatch):
    seen = set()
    original = MemorySplit.batches

    def spy(self, rows, **options):
        seen.update(rows.tolist())
        return original(self, rows, **options)

    monkeypatch.setattr(MemorySplit, "batches", spy)
    second = task(split, 1)
    fit(learner_for(tasks=(4, 2)), second, split, config(), engine=engine)
    assert seen == set(second.new.tolist()) | set(second.rehearsed.tolist())


def test_a_diverging_loss_is_named(engine, split):
    learner = learner_for()
    with torch.no_grad():
        learner.model.head.sigma.fill_(float("inf"))
    with pytest.raises(DivergedError, match=r"epoch 1 of task 1; a lower train\.learning_rate"):
        fit(learner, task(split), split, config(), engine=engine)


def test_the_rate_follows_the_schedule(engine, split, monkeypatch):
    rates = []
    original = torch.optim.SGD.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", spy)
    steps = config("train.schedule=steps", "train.milestones=[0.67]", "train.learning_rate=0.5")
    fit(learner_for(), task(split), split, steps, engine=engine)
    assert rates == pytest.approx([0.5] * 3 + [0.05] * 6)


def test_no_batch_has_a_single_image(engine, split):
    first = task(split)
    odd = Task(0, first.classes, first.new[:33], first.rehearsed)
    diary = fit(learner_for(), odd, split, config(), engine=engine)
    assert {m.steps for m in diary.steps} == {2}


def test_one_cycle_rises_from_low_to_its_peak_and_falls_to_zero():
    cycle = config("train=one-cycle")
    found = {done: rate_share(cycle, 0, done, epochs=1) for done in (0.0, 0.15, 0.3, 0.65, 1.0)}
    assert found == pytest.approx({0.0: 0.04, 0.15: 0.52, 0.3: 1.0, 0.65: 0.5, 1.0: 0.0})
    assert rate_share(cycle, 3, 0.0, epochs=10) == pytest.approx(1.0)


def test_steps_are_the_published_ones():
    steps = config("train=steps", "train.milestones=[0.5,0.75]", "train.gamma=0.1")
    rates = [rate_share(steps, epoch, 0.0, epochs=160) for epoch in range(160)]
    assert rates == pytest.approx([1.0] * 79 + [0.1] * 40 + [0.01] * 41)
