"""What a kind of run is, class-incremental or detection: what its command line means and how it is done.

Everything else about runs, their folders, locks, progress, evaluations, is the same for all kinds and in `session.py`.
The kinds themselves are listed in `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elign.lab.data.memory import Memory
from elign.lab.evaluation.results import Results
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.loop import Moment
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.speed import Speed

Show = Callable[[Moment], None]
Say = Callable[[str], None]
Finished = Callable[[Results], None]


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of run. Its configurations and benches are its own: nobody else looks into them.

    Args:
        name: As in `run.json`.
        command: What the user types for a new run.
        tree: Its settings.
        compose: Makes a configuration of what the user typed.
        from_dict: Makes one of what `run.json` holds.
        with_aligner: A configuration with other settings of the aligner.
        open_bench: Opens data and engine; chooses the way of training where none is given.
        first_task: What decides the model after the first task, given how many classes it has.
        teach: Trains a learner, which has grown for it, in one task.
        remember: Chooses the exemplars of the classes that a task brought, after it was learned.
        read: Fits the aligners of a task, takes all readings and writes them.
        is_read: Whether all that `read` leaves is there, in the folder of the readings and in that of the run.
        edition: Of its readings, from 1; written with them. One more whenever a reading is added, or comes to measure
            something else. What `read` has stored of images, latents and pairs, is used again as it is.
    """

    name: str
    command: str
    tree: ConfigTree
    compose: Callable[[Sequence[str]], Any]
    from_dict: Callable[[Mapping[str, Any]], Any]
    with_aligner: Callable[[Any, Sequence[str]], Any]
    open_bench: Callable[[Any, Speed | None], tuple[Any, Speed]]
    first_task: Callable[[Any, int, Speed], dict[str, Any]]
    teach: Callable[..., None]
    remember: Callable[[Any, Any, Memory, int], None]
    read: Callable[..., None]
    is_read: Callable[[RunFolder, RunFolder, int], bool]
    edition: int
