"""What a toy result says, in plain sentences that stay true whatever the numbers are."""

from __future__ import annotations

import statistics

from elign.lab.experiments.toy_result import READINGS, ToyResult
from elign.lab.report.spread import SMALLEST_SHOWN, mean_text, paired_difference, percent, seeds_text

CONTROLS: tuple[str, ...] = tuple(name for name, text in READINGS.items() if text.startswith("control"))


def mean_and_spread_text(result: ToyResult, reading: str) -> str:
    """`83.4 ± 1.2` over several seeds, `83.4` for a single one (which has no spread)."""
    return mean_text(result.values(reading))


def best_control(result: ToyResult) -> str:
    """The control with the highest mean accuracy."""
    return max(CONTROLS, key=lambda name: result.mean_and_spread(name)[0])


def _difference(result: ToyResult, one: str, other: str) -> tuple[float, str]:
    return paired_difference(result.values(one), result.values(other))


def _forgetting(result: ToyResult) -> str:
    before, after = result.mean_and_spread("previous model")[0], result.mean_and_spread("base")[0]
    if before - after < SMALLEST_SHOWN:
        return (
            f"Task 1 accuracy did not fall when the model learned task 2 ({percent(before)} before, "
            f"{percent(after)} after): there was nothing to bring back."
        )
    return f"Task 1 accuracy fell from {percent(before)} to {percent(after)} when the model learned task 2."


def _effect(result: ToyResult) -> str:
    gain, agreement = _difference(result, "eli", "base")
    value = mean_and_spread_text(result, "eli")
    how = seeds_text(len(result.seeds))
    if gain >= SMALLEST_SHOWN:
        lost = result.mean_and_spread("previous model")[0] - result.mean_and_spread("base")[0]
        if lost < SMALLEST_SHOWN:
            return f"ELI raised it to {value} % ({how}): a gain of {gain:.1f} points, better {agreement}."
        share = f"{100 * gain / lost:.0f} % of what was lost"
        return f"ELI brought it back to {value} % ({how}): a gain of {gain:.1f} points or {share}, better {agreement}."
    if gain <= -SMALLEST_SHOWN:
        return f"ELI made it worse: {value} % ({how}), a loss of {-gain:.1f} points, worse {agreement}."
    return f"ELI did not change it: {value} % ({how})."


def _controls(result: ToyResult) -> str:
    best = best_control(result)
    reached = f"The best control, {best}, reached {mean_and_spread_text(result, best)} %"
    lead, agreement = _difference(result, "eli", best)
    if lead >= SMALLEST_SHOWN:
        return f"{reached}: {lead:.1f} points below ELI (lower {agreement})."
    if lead <= -SMALLEST_SHOWN:
        return (
            f"{reached}: {-lead:.1f} points better than ELI (higher {agreement}), so in this run the simpler "
            "correction is the better one."
        )
    return f"{reached}: the same as ELI, so in this run the energy model adds nothing over it."


def _fairness(result: ToyResult) -> str:
    new_task = statistics.fmean(seed.new_task for seed in result.seeds)
    aligned = statistics.fmean(seed.new_task_aligned for seed in result.seeds)
    return (
        "Task identity is given to every row alike: each row knows that a test image belongs to task 1 and reads "
        f"it with task 1's head. Accuracy on task 2 is {percent(new_task)} in every row, since only old images are "
        f"aligned; if new images were aligned too, it would be {percent(aligned)}."
    )


def toy_summary(result: ToyResult) -> list[str]:
    """The result in a few sentences: what was lost, what ELI and the best control brought back, and on what terms.

    Args:
        result: The experiment.

    Returns:
        Sentences without markup, in reading order.
    """
    return [_forgetting(result), _effect(result), _controls(result), _fairness(result)]
