"""The two-task experiment on the embedded digits, with short trainings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elign.lab.data import ImageData, load_dataset
from elign.lab.data.errors import DataError
from elign.lab.experiments.toy import run_seed, split_in_two
from elign.lab.experiments.toy_config import default_config, printed_numbers
from elign.lab.experiments.toy_result import READINGS
from elign.lab.seeds import derive_seed


def quiet(what: str, done: int, of: int) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def outcome(digits):
    return run_seed(default_config("digits", 32, "paper"), digits, 0, quiet)


def test_tasks_are_the_two_halves_of_the_classes(digits):
    old, new = split_in_two(digits)
    assert old.first_class == 0
    assert new.first_class == 5
    assert old.train_y.unique().tolist() == new.train_y.unique().tolist() == [0, 1, 2, 3, 4]
    assert len(old.train_x) + len(new.train_x) == len(digits.train_images)
    assert old.train_x.shape[1] == 64
    assert 0 <= old.train_x.min() < old.train_x.max() <= 1


def test_a_single_class_cannot_be_two_tasks():
    image, label = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)
    with pytest.raises(DataError, match="two tasks need at least 2"):
        split_in_two(ImageData("one", image, label, image, label, ("a",)))


def test_forgetting_happens_and_eli_undoes_much_of_it(outcome):
    result, _ = outcome
    assert set(result.readings) == set(READINGS)
    assert result.readings["previous model"] > 97
    assert result.new_task > 95
    assert result.readings["base"] < result.readings["previous model"] - 30
    assert result.readings["eli"] > result.readings["base"] + 15
    assert result.readings["random-shift"] < result.readings["eli"]
    assert result.drift_after < result.drift_before


def test_the_picture_holds_what_the_numbers_say(outcome):
    result, picture = outcome
    steps, n, dim = picture.old_trajectory.shape
    assert (steps, dim) == (31, 32)
    assert picture.old_previous.shape == (n, dim)
    assert picture.correct.shape == (steps, n)
    # All test images of task 1 are shown, so the shares of right ones are the readings themselves.
    assert picture.correct[0].mean() * 100 == pytest.approx(result.readings["base"])
    assert picture.correct[-1].mean() * 100 == pytest.approx(result.readings["eli"])
    assert picture.energy["new, previous model"].mean() < picture.energy["new, current model"].mean()
    assert picture.energy["old, aligned"].mean() < picture.energy["old, current model"].mean()
    assert len(picture.loss) == 8000


def test_equal_seeds_give_equal_results_and_leave_the_global_random_state_alone(digits):
    config = replace(default_config("digits", 8, "trained"), epochs=2, iterations=20)
    before = torch.get_rng_state()
    first, second = (run_seed(config, digits, 3, quiet)[0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.readings == second.readings
    assert first.readings != run_seed(config, digits, 4, quiet)[0].readings


def test_only_the_papers_variant_leaves_the_second_head_at_its_start(digits):
    from elign.lab.experiments.toy import ToyModel, _train_both

    tasks = split_in_two(digits)
    for heads, moved in (("paper", False), ("trained", True)):
        config = replace(default_config("digits", 8, heads), epochs=1)
        torch.manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(5, "model"))
            start = ToyModel(64, 8, (5, 5)).heads[1][1].weight.clone()
        _, model = _train_both(config, tasks, 5, quiet)
        assert torch.equal(model.heads[1][1].weight, start) is not moved


def test_settings_are_the_papers_where_the_paper_has_some():
    small, large = default_config("mnist", 32, "paper"), default_config("mnist", 512, "paper")
    assert (small.iterations, small.ema_decay, small.epochs, small.batch_size) == (17100, 0.99, 10, 128)
    assert (large.iterations, large.ema_decay, large.hidden) == (8500, 0.89, (64,))
    assert printed_numbers(small) == {"previous model": 99.16, "base": 20.88, "eli": 83.44}
    for other in (default_config("digits", 32, "paper"), default_config("mnist", 32, "trained")):
        assert printed_numbers(other) == {}
