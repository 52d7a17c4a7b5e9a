"""What an experiment says, in sentences that stay true whatever the numbers are."""

from __future__ import annotations

import statistics

from elign.lab.evaluation.catalogue import DEFAULT
from elign.lab.experiments.words import memory_words
from elign.lab.report.run_readings import FREE_CONTROLS, FREE_ELI, MASK, ORACLE, ORACLE_CONTROLS, best
from elign.lab.report.runs import Experiment
from elign.lab.report.spread import SMALLEST_SHOWN, mean_text, paired_difference, seeds_text


def run_summary(experiment: Experiment) -> list[str]:
    """An experiment in a few sentences: what was run, base, ELI as in the paper, label-free, and the controls.

    Args:
        experiment: The runs.

    Returns:
        Sentences without markup, in reading order.
    """
    if experiment.values(ORACLE) is None or experiment.tasks < 2:
        return [
            _what(experiment),
            f"So far it reaches {_reached(experiment)} after {_tasks(experiment.tasks)}. Nothing is aligned "
            "before the second task, so there is nothing to say about ELI yet.",
        ]
    found = (_what, _base, _default, _oracle, _mask, _oracle_controls, _label_free, _among_old)
    return [sentence for make in found if (sentence := make(experiment))]


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _average(experiment: Experiment, reading: str) -> str:
    return mean_text(experiment.values(reading) or [float("nan")])


def _reached(experiment: Experiment) -> str:
    """The first number of the text: an accuracy needs no name, anything else does."""
    name = f"a {experiment.terms.measure} of " if experiment.detects else ""
    return f"{name}{_average(experiment, 'base')} %"


def _difference(experiment: Experiment, one: str, other: str, metric: str = "average") -> tuple[float, str]:
    ones, others = experiment.values(one, metric), experiment.values(other, metric)
    return paired_difference(ones, others) if ones and others else (0.0, "")


def _what(experiment: Experiment) -> str:
    config, sizes, tasks = experiment.config, experiment.sizes, experiment.tasks
    later = f", then {'/'.join(map(str, sorted(set(sizes[1:]))))} at a time" if len(sizes) > 1 else ""
    seeds = ", ".join(map(str, experiment.seeds))
    so_far = "" if tasks == len(sizes) else f" Only {tasks} of {len(sizes)} tasks are finished so far."
    return (
        f"{config['learner']['name']} learned {sum(sizes[:tasks])} classes of {config['data']['name']} in "
        f"{_tasks(tasks)} ({sizes[0]} first{later}) with the model {config['model']['name']} and "
        f"{memory_words(config)}; "
        f"{seeds_text(len(experiment.runs))} (seed{'s' if len(experiment.seeds) > 1 else ''} {seeds}).{so_far}"
    )


def _base(experiment: Experiment) -> str:
    old, new = (experiment.values("base", part) or [float("nan")] for part in ("old", "new"))
    last = experiment.values("base", "last") or [float("nan")]
    return (
        f"As it is (base) it reaches {_reached(experiment)} on average over the tasks and "
        f"{mean_text(last)} % after the last one; old classes {mean_text(old)} %, new ones {mean_text(new)} %."
    )


def _default(experiment: Experiment) -> str:
    if experiment.values(DEFAULT) is None:
        return ""
    gain, agreement = _difference(experiment, DEFAULT, "base")
    text = f"Read by the label-free default ({DEFAULT}), the same models reach {_average(experiment, DEFAULT)} %: "
    text += _against(gain, agreement, "base")
    lead, agreement = _difference(experiment, DEFAULT, ORACLE)
    return f"{text}, and {_against(lead, agreement, 'ELI with the oracle below')}."


def _against(difference: float, agreement: str, other: str) -> str:
    if abs(difference) < SMALLEST_SHOWN:
        return f"as much as {other}"
    return f"{abs(difference):.1f} points {'more' if difference > 0 else 'less'} than {other} ({agreement})"


def _oracle(experiment: Experiment) -> str:
    gain, agreement = _difference(experiment, ORACLE, "base")
    # The authors' code tells detectors more than that.
    under = "an oracle" if experiment.detects else "the paper's protocol"
    reached = f"Under {under}, which tells ELI {experiment.terms.told}, the average is {_average(experiment, ORACLE)} %"
    if gain >= SMALLEST_SHOWN:
        return f"{reached}: ELI gains {gain:.1f} points, better {agreement}."
    if gain <= -SMALLEST_SHOWN:
        return f"{reached}: ELI loses {-gain:.1f} points, worse {agreement}."
    return f"{reached}: ELI changes nothing."


def _mask(experiment: Experiment) -> str:
    if experiment.values(MASK) is None:
        return ""
    lead, agreement = _difference(experiment, ORACLE, MASK)
    told = f"Told the same, and with nothing aligned (oracle-mask), base reaches {_average(experiment, MASK)} %"
    if lead >= SMALLEST_SHOWN:
        return f"{told}: {lead:.1f} points below ELI (lower {agreement}), so ELI adds to what that knowledge gives."
    if lead <= -SMALLEST_SHOWN:
        return (
            f"{told}: {-lead:.1f} points more than with ELI (higher {agreement}), so who knows which "
            f"{experiment.terms.item}s are old does better here without alignment."
        )
    return f"{told}: the same as with ELI, so alignment adds nothing to that knowledge."


def _oracle_controls(experiment: Experiment) -> str:
    control = best(experiment, ORACLE_CONTROLS)
    if control is None:
        return ""
    lead, agreement = _difference(experiment, ORACLE, control)
    reached = f"Of the simpler alignments that are told the same, the best, {control}, "
    reached += f"reaches {_average(experiment, control)} %"
    if lead >= SMALLEST_SHOWN:
        return f"{reached}: {lead:.1f} points below ELI (lower {agreement})."
    if lead <= -SMALLEST_SHOWN:
        return f"{reached}: {-lead:.1f} points better than ELI (higher {agreement}), so here the simpler one is better."
    return f"{reached}: the same as ELI, so the energy model adds nothing over it."


def _label_free(experiment: Experiment) -> str:
    free, control = best(experiment, FREE_ELI), best(experiment, FREE_CONTROLS)
    if free is None:
        return ""
    gain, agreement = _difference(experiment, free, "base")
    text = f"Without test labels, the best way to use ELI, {free}, reaches {_average(experiment, free)} %: "
    if abs(gain) < SMALLEST_SHOWN:
        text += "no change against base."
    else:
        text += f"{abs(gain):.1f} points {'more' if gain > 0 else 'less'} than base, {agreement}."
    if free.startswith("forward/") and control != "forward/none" and experiment.values("forward/none"):
        # Another classifier, so base is not what ELI has to be measured against.
        text += f" The same prototypes without ELI, forward/none, reach {_average(experiment, 'forward/none')} %."
    if control is not None:
        lead, agreement = _difference(experiment, free, control)
        text += f" The best label-free control, {control}, reaches {_average(experiment, control)} %, "
        text += (
            "the same."
            if abs(lead) < SMALLEST_SHOWN
            else f"{abs(lead):.1f} points {'less' if lead > 0 else 'more'} ({agreement})."
        )
    return text + " Both were chosen by their results on these test images, which flatters both."


def _among_old(experiment: Experiment) -> str:
    before, after = experiment.values("base", "among_old"), experiment.values(ORACLE, "among_old")
    if before is None or after is None:
        return ""
    change, agreement = paired_difference(after, before)
    text = (
        f"Old images that choose among old classes only are read rightly at {statistics.fmean(before):.1f} % before "
        f"and {statistics.fmean(after):.1f} % after alignment: "
    )
    if change >= SMALLEST_SHOWN:
        return f"{text}ELI tells old classes apart better by {change:.1f} points ({agreement})."
    if change <= -SMALLEST_SHOWN:
        return f"{text}ELI tells old classes apart worse by {-change:.1f} points ({agreement})."
    return f"{text}whatever ELI changes is the balance between old and new classes."
