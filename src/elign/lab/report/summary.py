"""The result of a group of runs in a few sentences that stay true for all numbers."""

from __future__ import annotations

from elign.lab.evaluation.methods import default_of
from elign.lab.evaluation.statistics import SMALLEST_SHOWN, difference_text, mean_text, seeds_text
from elign.lab.report.run_groups import MASK, ORACLE, RunGroup, baselines, free_eli
from elign.lab.runs.describe import memory_text


def run_summary(group: RunGroup) -> list[str]:
    """Describe a group: its runs, base, the default, ELI without test labels, ELI with an oracle."""
    if not group.values(ORACLE) or group.tasks < 2:
        reached = f"Base reaches {_reached(group, 'base')} after {_tasks(group.tasks)}."
        return [_runs(group), f"{reached} Methods differ from base after the second task only."]
    return [sentence for make in (_runs, _base, _default, _label_free, _oracle) if (sentence := make(group))]


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _reached(group: RunGroup, method: str) -> str:
    return f"{mean_text(group.values(method))} %"


def _against(group: RunGroup, one: str, other: str) -> str:
    """Compare two methods: `3.1 points more than base, on 3 of 3 seeds`."""
    difference, agreement = difference_text(group.values(one), group.values(other))
    if abs(difference) < SMALLEST_SHOWN:
        return f"the same as {other}"
    return f"{abs(difference):.1f} points {'more' if difference > 0 else 'less'} than {other}, {agreement}"


def _runs(group: RunGroup) -> str:
    config, sizes, tasks = group.config, group.sizes, group.tasks
    later = f", then {'/'.join(map(str, sorted(set(sizes[1:]))))} at a time" if len(sizes) > 1 else ""
    seeds = f"seed{'s' if len(group.seeds) > 1 else ''} {', '.join(map(str, group.seeds))}"
    so_far = "" if tasks == len(sizes) else f" Only {tasks} of {len(sizes)} tasks are finished so far."
    return (
        f"{config['learner']['name']} learned {sum(sizes[:tasks])} classes of {config['data']['name']} in "
        f"{_tasks(tasks)} ({sizes[0]} first{later}) with the model {config['model']['name']} and "
        f"{memory_text(config)}; {seeds_text(len(group.runs))} ({seeds}).{so_far}"
    )


def _base(group: RunGroup) -> str:
    last = mean_text(group.values("base", "last"))
    old, new = (mean_text(group.values("base", part)) for part in ("old", "new"))
    return (
        f"Base, without any correction, has an average {group.metric_names.measure} over the tasks of "
        f"{_reached(group, 'base')}. It reaches {last} % after the last task, {old} % on old classes and {new} % on "
        "new ones."
    )


def _default(group: RunGroup) -> str:
    default = default_of(group.methods())
    if not group.values(default):
        return ""
    return f"The label-free default ({default}) reaches {_reached(group, default)}: {_against(group, default, 'base')}."


def _label_free(group: RunGroup) -> str:
    free, baseline = group.best(free_eli()), group.best(baselines(uses_labels=False))
    if free is None:
        return ""
    text = f"The best label-free use of ELI, {free}, reaches {_reached(group, free)}: {_against(group, free, 'base')}."
    if baseline is not None:
        text += f" The best label-free baseline, {baseline}, reaches {_reached(group, baseline)}: "
        text += f"{_against(group, baseline, free)}."
    return f"{text} They were chosen by their results on these test images, so their numbers are optimistic."


def _oracle(group: RunGroup) -> str:
    text = f"An oracle knows {group.metric_names.told}. With it, ELI ({ORACLE}) reaches {_reached(group, ORACLE)}: "
    text += f"{_against(group, ORACLE, 'base')}."
    if group.values(MASK):
        text += f" Base with the same knowledge ({MASK}) reaches {_reached(group, MASK)}: "
        text += f"{_against(group, MASK, ORACLE)}."
    if baseline := group.best(baselines(uses_labels=True)):
        text += f" The best baseline with it, {baseline}, reaches {_reached(group, baseline)}: "
        text += f"{_against(group, baseline, ORACLE)}."
    return text
