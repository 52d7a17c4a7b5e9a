"""`elign show`: what runs reached, with all controls; several runs of one experiment as mean and spread."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from elign.lab.evaluation.metrics import Summary
    from elign.lab.experiments.run_folder import RunFolder

HELP = "show what a run reached, each reading beside its controls; several runs (seeds) as mean and spread"
EXAMPLES = """examples:
  elign show out/my-run
  elign show out/my-run --classifier nearest-mean
  elign show out/seed0 out/seed1 out/seed2 --markdown docs/results.md --section half-5-icarl
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs of one experiment")
    parser.add_argument(
        "--classifier",
        choices=("fc", "nearest-mean"),
        default="fc",
        help="fc: the model's own head, and prototypes; nearest-mean: of exemplars (default: fc)",
    )
    parser.add_argument(
        "--details", action="store_true", help="also every task, accuracy matrices and drift; of detectors every class"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into this markdown page")
    parser.add_argument("--section", help="the section of that page to write it to (default: made from the run)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print the table."""
    from elign.lab.evaluation.class_details import class_details
    from elign.lab.evaluation.details import details
    from elign.lab.evaluation.table import HEAD, NEAREST_MEAN, summary_markdown
    from elign.lab.experiments.kinds import DETECTION
    from elign.lab.experiments.run_folder import RunFolder
    from elign.lab.experiments.words import run_words
    from elign.lab.pages import around_section, update_section

    folders = [RunFolder(path) for path in args.runs]
    classifiers = HEAD if args.classifier == "fc" else NEAREST_MEAN
    section = args.section or run_words(folders[0].facts()).replace(" ", "-")
    if args.markdown:
        around_section(args.markdown, section)
    summaries = print_runs(folders, console, classifiers=classifiers)
    if args.details:
        for folder in folders:
            facts, results = folder.facts(), folder.gather()
            detects = facts.get("kind") == DETECTION
            tables = list(details(results, classifier="detector" if detects else args.classifier))
            if detects:
                tables += class_details(results, facts["classes"])
            for table in tables:
                console.print(table)
    if args.markdown:
        page = summary_markdown(summaries, classifiers=classifiers)
        update_section(args.markdown, section, "\n\n".join([page.rstrip(), *edition_notes(folders)]))


def print_run(folder: RunFolder, console: Console) -> None:
    """The table of one run."""
    print_runs([folder], console)


def print_runs(
    folders: Sequence[RunFolder], console: Console, *, classifiers: Sequence[str] | None = None
) -> list[list[Summary]]:
    """The table of runs of one experiment.

    Raises:
        RunError: They are not of one experiment, or nothing was read yet.
    """
    from elign.lab.evaluation.metrics import summarise
    from elign.lab.evaluation.results import CSV_NAME, JSON_NAME
    from elign.lab.evaluation.table import HEAD, summary_table
    from elign.lab.experiments.run_folder import RunError, go_on_command
    from elign.lab.experiments.words import run_words

    _check_alike([folder.facts() for folder in folders])
    summaries, done = [], set()
    for folder in folders:
        results = folder.gather()
        if not results.rows:
            command = go_on_command(folder, results.facts)
            raise RunError(f"{folder.path} has no results yet; '{command}' goes on with it")
        summaries.append(summarise(results.rows))
        done.add(len(results.tasks))
    if len(done) > 1:
        raise RunError(f"these runs have finished different numbers of tasks: {sorted(done)}")
    title = f"{run_words(folders[0].facts())}, {done.pop()} of {len(folders[0].facts()['sizes'])} tasks"
    console.print(summary_table(summaries, title=title, classifiers=classifiers or HEAD))
    for folder in folders:
        files = [str(file) for file in (folder.path / JSON_NAME, folder.path / CSV_NAME) if file.is_file()]
        console.print(f"Results: {', '.join(files or [str(folder.path)])}", soft_wrap=True, markup=False)
    for note in edition_notes(folders):
        console.print(note, soft_wrap=True, markup=False)
    return summaries


def edition_notes(folders: Sequence[RunFolder]) -> list[str]:
    """A note about each run that another edition of the readings has read."""
    from elign.lab.experiments.editions import other_edition

    said = [other_edition(folder, folder.facts(), folder.gather().tasks) for folder in folders]
    return [f"Note: {sentence}." for sentence in said if sentence]


def _check_alike(runs: Sequence[dict[str, Any]]) -> None:
    """Refuse to average what is not the same experiment with different seeds."""
    from elign.lab.experiments.kinds import kind_of
    from elign.lab.experiments.run_config import flatten
    from elign.lab.experiments.run_folder import RunError

    kinds = [kind_of(facts) for facts in runs]
    if len({kind.name for kind in kinds}) > 1:
        raise RunError("these are runs of different experiments: some classify images, others detect objects")
    configs = [kind.from_dict(facts["config"]) for kind, facts in zip(kinds, runs, strict=True)]
    first = dataclasses.replace(configs[0], seed=0)
    for config in configs[1:]:
        one, other = (flatten(dataclasses.replace(c, seed=0)) for c in (first, config))
        different = [key for key in one | other if one.get(key) != other.get(key)]
        if dataclasses.replace(config, seed=0).digest() != first.digest():
            raise RunError(f"these are runs of different experiments: they differ in {', '.join(different)}")
    seeds = [config.seed for config in configs]
    if len(set(seeds)) < len(seeds):
        raise RunError(f"these runs have equal seeds ({', '.join(map(str, seeds))}): that is no spread")
