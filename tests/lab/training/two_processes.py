"""What two processes do together; `test_processes.py` starts it with torchrun and compares with one process.

torchrun --nproc-per-node 2 two_processes.py FOLDER key=value ...

One after the other, since processes take seconds to start: they work, and each writes what it found; they begin a run
of these settings, in which all fail; and one fails alone. Each writes the exit codes of both.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from elign.lab.cli.main import main as command
from elign.lab.config.schema import compose
from elign.lab.data.base import MemorySplit
from elign.lab.evaluation.features import latents_of, pairs_of
from elign.lab.learners import make_learner
from elign.lab.models import make_backbone
from elign.lab.training.device import _FAILED, Engine
from elign.lab.training.trainer import ClassifierTraining, Task, Trainer
from elign.utils.errors import OptionError

IMAGES = 70


class Silent:
    def on_step(self, progress):
        pass

    def checkpoint(self, step, state):
        pass


def work(engine):
    """A task that is trained, and latents: what must not depend on the number of processes. Nothing is augmented."""
    torch.manual_seed(0)
    labels = torch.arange(IMAGES) % 6
    images = torch.randint(256, (IMAGES, 1, 8, 8), dtype=torch.uint8)
    images[:, :, 0, 0] = (40 * labels).unsqueeze(1).to(torch.uint8)
    split = MemorySplit(images, labels, mean=[0.5], std=[0.25], crop_padding=0, flip=False)
    learner = make_learner("icarl", lambda: make_backbone("conv", image_shape=(1, 8, 8)))
    learner.grow(4)
    learner.grow(2)
    task = Task(1, range(4, 6), torch.nonzero(labels >= 4).flatten(), torch.nonzero(labels < 4).flatten())
    config = compose(["data=digits", "train.epochs=3", "train.batch_size=16", "train.learning_rate=0.02"]).train
    training = ClassifierTraining(learner, task, split, config, engine=engine, seed=0)
    Trainer(learner, training, config, engine=engine, callback=Silent()).fit()
    rows = torch.arange(IMAGES - 7)
    # Batches do not divide evenly.
    sizes = {"latents": len(rows), "few": 1, "none": 0}
    found = {
        name: latents_of(learner.model, split, rows[:size], engine=engine, size=10) for name, size in sizes.items()
    }
    aligner = compose(["aligner.batch_size=10", "aligner.passes=2"]).aligner
    pairs = pairs_of(learner.teacher, learner.model, split, rows, aligner, engine=engine, seed=5)
    found["previous"], found["current"] = pairs
    return {**found, **learner.state()}


def fail(engine):
    with engine.together():
        if engine.rank == 1:
            raise OptionError("only here")
        engine.wait()
        engine.wait()


def code_of(what):
    """The exit code that a process would end with."""
    try:
        return what() or 0
    except OptionError as error:
        print(f"elign: {error}", file=sys.stderr)
        return 1
    except SystemExit as stop:
        return stop.code


def forget_failure(engine):
    """Processes that fail end, and so remember it; these go on."""
    engine.wait()
    if engine.is_main:
        torch.distributed.distributed_c10d._get_default_store().delete_key(_FAILED)
    engine.wait()


def main(folder, overrides):
    engine = Engine(accelerator="cpu")
    found = {name: value.contiguous() for name, value in work(engine).items()}
    save_file(found, folder / f"{engine.rank}.safetensors")
    all_fail = code_of(lambda: command(["run", *overrides, f"out={folder / 'run'}"]))
    forget_failure(engine)
    one_fails = code_of(lambda: fail(engine))
    # torchrun ends the others as soon as one has failed, so that the codes they would have ended with are lost.
    (folder / f"codes-{engine.rank}").write_text(f"{all_fail} {one_fails}")
    # Threads of the connection still wait for what the failed process will never send; now and then the end of Python
    # finds one of them at it and aborts. A process that really fails has ended with its code by then, or is ended.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
