"""Several seeds, kept as they finish, resumed after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from elign.lab.cli import main
from elign.lab.data import load_dataset
from elign.lab.experiments.toy_config import default_config
from elign.lab.experiments.toy_run import run_toy

CONFIG = replace(default_config("digits", 8, "paper"), epochs=1, iterations=5)


def run(folder, seeds, tell=lambda what, done, of: None, config=CONFIG):
    return run_toy(config, load_dataset("digits"), seeds, folder, command="elign toy", tell=tell)


def numbers(result):
    return [(seed.seed, dict(seed.readings), seed.new_task, seed.drift_after) for seed in result.seeds]


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path):
    def stop_in_second_seed(what, done, of):
        if what.startswith("seed 1"):
            raise KeyboardInterrupt

    whole = run(tmp_path / "whole", range(2))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", range(2), stop_in_second_seed)
    told = []
    resumed = run(tmp_path / "cut", range(2), lambda what, done, of: told.append(what))
    assert numbers(resumed) == numbers(whole)
    assert not any(what.startswith("seed 0") for what in told)
    assert np.array_equal(resumed.picture.old_trajectory, whole.picture.old_trajectory)
    assert resumed.picture.energy.keys() == whole.picture.energy.keys()


def test_other_settings_do_not_use_old_results(tmp_path):
    first = run(tmp_path, [0])
    other = run(tmp_path, [0], config=replace(CONFIG, iterations=6))
    assert len(other.picture.loss) == 6
    assert len(first.picture.loss) == 5


@pytest.mark.parametrize("name", ["seed-0.json", "picture.npz"])
def test_a_damaged_file_is_made_again(tmp_path, name):
    whole = run(tmp_path, [0])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:20])
    assert numbers(run(tmp_path, [0])) == numbers(whole)


def test_a_killed_process_loses_no_finished_seed(small_maps, tmp_path, kill_elign_when):
    words = ["toy", "--seeds", "2", "--iterations", "100", "--out", str(tmp_path)]
    kill_elign_when(tmp_path / "seed-0.json", *words)
    kept = (tmp_path / "seed-0.json").read_bytes()
    assert not (tmp_path / "report.html").exists()
    assert main(words) == 0
    assert (tmp_path / "seed-0.json").read_bytes() == kept
    assert json.loads((tmp_path / "seed-1.json").read_text())["seed"] == 1
    assert (tmp_path / "report.html").exists()
