"""The HTML report of the two-task experiment: one file that opens offline, with every number next to its controls."""

from __future__ import annotations

from html import escape
from pathlib import Path

from elign.lab.experiments.toy_result import READINGS, ToyResult
from elign.lab.report.embedding import Embedding, embed
from elign.lab.report.figure import Figure
from elign.lab.report.latent_figure import latent_figure
from elign.lab.report.page import Cell, Grid, figure_html, fill, pairs_html, prose, render_page, table_html
from elign.lab.report.spread import seeds_text
from elign.lab.report.summary import toy_summary
from elign.lab.report.toy_figures import accuracy_figure, energy_figure, heat_figure, loss_figure
from elign.utils.files import write_text_atomic


def _readings_table(result: ToyResult) -> str:
    several = len(result.seeds) > 1
    seeds = [f"seed {seed.seed}" for seed in result.seeds]
    header = ["reading", *(["mean", "std", *seeds] if several else seeds)]
    header += ["paper"] if result.printed else []
    rows = []
    for name, description in READINGS.items():
        mean, spread = result.mean_and_spread(name)
        row = [Cell.words(name)]
        row += [Cell.number(mean), Cell.number(spread)] if several else []
        row += [Cell.number(value) for value in result.values(name)]
        if result.printed:
            printed = result.printed.get(name)
            row.append(Cell("–", float("-inf")) if printed is None else Cell(f"{printed:g}", printed))
        rows.append([*row, Cell.words(description)])
    caption = f"Accuracy (%) on held-out images of task 1; {seeds_text(len(result.seeds))}"
    return table_html(Grid(caption, [*header, "what it is"], rows, mark="eli"))


def _drift_table(result: ToyResult) -> str:
    header = ["seed", "before", "after alignment", "change", "task 2 accuracy (%)", "training (s)", "fitting ELI (s)"]
    rows = []
    for seed in result.seeds:
        before, after = seed.drift_before, seed.drift_after
        # Without any drift a relative change has no meaning.
        change = 100 * (after - before) / before if before else None
        rows.append(
            [
                Cell(str(seed.seed), seed.seed),
                Cell.number(before, 3),
                Cell.number(after, 3),
                Cell("–", 0.0) if change is None else Cell(f"{change:+.0f} %", change),
                Cell.number(seed.new_task),
                Cell.number(seed.seconds_train),
                Cell.number(seed.seconds_fit),
            ]
        )
    caption = "Mean distance between current and previous latents of old test images, for each seed"
    return table_html(Grid(caption, header, rows))


def toy_html(result: ToyResult, embedding: Embedding) -> str:
    """The report as text.

    Args:
        result: The experiment.
        embedding: Positions of its latents.
    """
    latent, walk = latent_figure(result.picture, embedding)
    figures: dict[str, Figure] = {
        "accuracy": accuracy_figure(result),
        "latent": latent,
        "heat": heat_figure(result.picture),
        "energy": energy_figure(result.picture),
        "loss": loss_figure(result.picture),
    }
    frames = {"latent": walk}
    parts = {f"{name}_figure": figure_html(name, each, frames=frames.get(name)) for name, each in figures.items()}
    body = fill(
        "toy.html",
        summary="".join(f"<p>{prose(sentence)}</p>\n" for sentence in toy_summary(result)),
        readings_table=_readings_table(result),
        drift_table=_drift_table(result),
        settings=pairs_html(result.settings),
        environment=pairs_html(result.environment),
        command=escape(result.command),
        first_seed=str(result.seeds[0].seed),
        **parts,
    )
    return render_page(title=result.title, body=body, figures=figures, frames=frames)


def write_toy_report(result: ToyResult, path: Path, *, embedding: Embedding | None = None) -> Path:
    """Write the report of an experiment as one HTML file.

    Args:
        result: The experiment.
        path: The file to write; missing folders are made, an older report is replaced as a whole.
        embedding: Positions of the latents if they are known already (`embed`), else they are computed.

    Returns:
        `path`.
    """
    write_text_atomic(path, toy_html(result, embed(result.picture) if embedding is None else embedding))
    return path
