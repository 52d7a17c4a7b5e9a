"""The toy experiment over several seeds, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import elign
from elign.lab.data import ImageData
from elign.lab.environment import describe_environment
from elign.lab.experiments.toy import Tell, run_seed
from elign.lab.experiments.toy_config import ToyConfig, printed_numbers
from elign.lab.experiments.toy_result import ToyResult
from elign.lab.experiments.toy_store import ToyStore


def run_toy(
    config: ToyConfig, data: ImageData, seeds: Sequence[int], folder: Path, *, command: str, tell: Tell
) -> ToyResult:
    """Run what is not finished yet, and put all seeds together.

    Args:
        config: What to run.
        data: The data set that `config` names.
        seeds: One run for each.
        folder: Where finished seeds are kept.
        command: What makes this result again, for the reader.
        tell: Called now and then with what is going on.
    """
    store = ToyStore(folder, asdict(config) | {"elign": elign.__version__})
    results = []
    for place, seed in enumerate(seeds):
        kept = store.seed(seed)
        if kept is None or (place == 0 and store.picture() is None):
            kept, arrays = run_seed(
                config,
                data,
                seed,
                lambda what, done, of: tell(f"seed {seed}: {what}", done, of),  # noqa: B023
            )
            if place == 0:
                store.save_picture(arrays)
            store.save_seed(kept)
        results.append(kept)
    picture = store.picture()
    if picture is None:
        raise OSError(f"{folder / 'picture.npz'} was written but cannot be read back: is the disk full?")
    seconds = sum(result.seconds_train + result.seconds_fit for result in results)
    return ToyResult(
        title=f"Two tasks on {data.name}: forgetting, and undoing it",
        settings=_shown(config, data, seeds),
        seeds=tuple(results),
        picture=picture,
        environment=describe_environment() | {"duration": f"{seconds:.0f} s of training and fitting"},
        command=command,
        printed=printed_numbers(config),
    )


def _shown(config: ToyConfig, data: ImageData, seeds: Sequence[int]) -> dict[str, str | int | float | bool | list[int]]:
    half = len(data.classes) // 2
    heads = {
        "paper": "head of task 2 stays at its random start, as in the paper",
        "trained": "both heads are trained",
    }
    return {
        "data": f"{data.name}, classes 0-{half - 1} then {half}-{len(data.classes) - 1}",
        "latent dimension": config.latent_dim,
        "heads": heads[config.heads],
        "epochs per task": config.epochs,
        "learning rate": config.learning_rate,
        "batch size": config.batch_size,
        "energy model": "-".join(["i", *map(str, config.hidden), "o"]),
        "energy iterations": config.iterations,
        "EMA decay": config.ema_decay,
        "Langevin steps": config.steps,
        "Langevin step size": config.step_size,
        "seeds": list(seeds),
    }
