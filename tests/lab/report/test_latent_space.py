"""The latent space: one map for everything, the same each time, for any size of input; and what runs leave of it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from elign.aligners.energy import EnergyAligner
from elign.lab.cli.main import main
from elign.lab.report.latent_space import (
    balanced_subset,
    embed,
    energy_figure,
    heat_figure,
    latent_figure,
    run_walk,
    shown_steps,
)
from elign.lab.report.run_groups import find_runs, read_run, read_runs
from elign.lab.runs.run_dir import RunDir
from elign.lab.storage import DamagedRunError


@pytest.fixture(scope="module")
def walk(build_walk):
    return build_walk()


@pytest.fixture(scope="module")
def embedding(walk):
    """Shared, since the embedding takes longer than everything else."""
    return embed(walk)


def test_shapes_bounds_and_distances(embedding):
    assert embedding.trajectory.shape == (11, 150, 2)
    assert embedding.previous.shape == embedding.new.shape == (150, 2)
    assert (embedding.steps[0], embedding.steps[-1]) == (0, 30)
    everything = np.concatenate([embedding.previous, embedding.trajectory.reshape(-1, 2), embedding.new])
    for (low, high), values in zip(embedding.limits(), everything.T, strict=True):
        assert low < values.min() < values.max() < high
    # Aligned latents lie nearer to their targets.
    before, after = (np.linalg.norm(embedding.trajectory[step] - embedding.previous, axis=1) for step in (0, -1))
    assert np.median(after) < np.median(before)


def test_twice_the_same(build_walk):
    walk = build_walk(n=30, m=20, dimension=8, last=10)
    first, second = embed(walk), embed(walk)
    np.testing.assert_array_equal(first.trajectory, second.trajectory)
    np.testing.assert_array_equal(first.new, second.new)


@pytest.mark.parametrize(("n", "m", "dimension", "last"), [(1, 0, 1, 0), (1, 1, 2, 1), (2, 0, 3, 30), (3, 4, 1, 5)])
def test_tiny_inputs(build_walk, n, m, dimension, last):
    embedding = embed(build_walk(n=n, m=m, dimension=dimension, last=last))
    assert embedding.trajectory.shape == (len(shown_steps(last)), n, 2)
    assert embedding.new.shape == (m, 2)
    assert np.isfinite(embedding.trajectory).all()
    assert np.isfinite(embedding.limits()).all()


def test_identical_latents(build_walk):
    walk = build_walk(n=20, m=10, dimension=4, last=5)
    names = ("old_previous", "old_trajectory", "new_current")
    same = replace(walk, **{name: np.ones_like(getattr(walk, name)) for name in names})
    assert np.isfinite(embed(same).trajectory).all()


def test_images_that_overflowed_are_left_out_and_counted(build_walk):
    walk = build_walk(n=12, m=5, dimension=4, last=3)
    walk.old_trajectory[2, 7] = np.inf
    assert set(embed(walk).old_index) == set(range(12)) - {7}
    assert "1 of 12 images are left out" in heat_figure(walk).caption


def test_subset_is_balanced_and_increasing():
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50)
    rows = balanced_subset(labels, 23)
    assert list(np.bincount(labels[rows])) == [10, 3, 10]
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(balanced_subset(labels, 1000), np.arange(103))


@pytest.mark.parametrize(("last", "shown"), [(30, range(0, 31, 3)), (4, range(5)), (0, range(1))])
def test_steps_include_both_ends(last, shown):
    assert list(shown_steps(last)) == list(shown)


def test_the_figure_steps_through_the_walk(walk, embedding, resolved):
    figure = latent_figure(walk, embedding)
    frames = figure.frames
    assert len(frames.texts) == len(frames.x) == len(frames.symbols) == len(embedding.steps)
    wrong = sum(symbol == "x" for trace in frames.symbols[-1] for symbol in trace)
    right = walk.correct[-1, embedding.old_index]
    assert wrong == (~right).sum()
    assert f"{100 * right.mean():.0f} %" in frames.texts[-1]
    last = figure.at(-1)
    assert last.frames is None
    assert [last.spec["data"][number]["x"] for number in frames.traces] == frames.x[-1]
    assert [figure.spec["data"][number]["x"] for number in frames.traces] == frames.x[0]
    assert resolved(last.spec)["layout"]["xaxis"] == resolved(figure.spec)["layout"]["xaxis"]


def test_moves_and_energies(walk):
    heat = heat_figure(walk).spec["data"][0]
    moved = (walk.old_trajectory[-1] - walk.old_trajectory[0]).astype(float).mean(axis=0)
    np.testing.assert_allclose([row[-1] for row in heat["z"]], moved, atol=1e-4)
    assert heat["zmax"] == -heat["zmin"]
    energy = energy_figure(walk)
    assert f"old, aligned {np.median(walk.energy['old, aligned']):.2f}" in energy.alternative
    for trace in energy.spec["data"]:
        assert sum(trace["y"]) == pytest.approx(100, abs=0.1)


def test_an_evaluation_has_the_latents_of_its_run(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    for name, option in (("logits", "aligner=logits"), ("six", "aligner.steps=6")):
        assert main(["evaluate", str(tmp_path / "run"), option, "aligner.iterations=5", "--name", name]) == 0
    assert len(find_runs([tmp_path])) == 1
    folder = tmp_path / "run" / "evaluations"
    groups, _ = read_runs([RunDir(tmp_path / "run"), *find_runs([folder / "six", folder / "logits"])])
    assert [each.name for each in groups] == [
        "lucir on digits, 4+3",
        "lucir on digits, 4+3, aligner.iterations=5, aligner.steps=6",
        "lucir on digits, 4+3, aligner.iterations=5, aligner.space=logits",
    ]
    six, logits = (run_walk(group.runs[0]).old_trajectory.shape for group in groups[1:])
    # Aligned are the logits of the seven old classes.
    assert (six[0], logits[2]) == (7, 7)


def test_the_walk_agrees_with_the_methods(run_folders, tmp_path):
    options = ("data=digits", "protocol.first=5", "protocol.increment=5", "data.limit=10", "train.first_epochs=1")
    options += ("train.epochs=1", "aligner.iterations=5", "aligner.steps=2", "learner.head=linear")
    assert main(["run", *options, f"out={tmp_path / 'linear'}"]) == 0
    # Each has a head of its own.
    for folder in (run_folders / "icarl-0", run_folders / "lucir", tmp_path / "linear"):
        run = read_run(RunDir(folder))
        walk, drift = run_walk(run), run.tasks[-1]["drift"]
        last = {row.method: row for row in run.rows if row.task == len(run.tasks) and row.classifier == "fc"}
        for step, method, aligner in ((0, "base", "base"), (-1, "eli/oracle", "eli")):
            assert walk.correct[step].mean() == pytest.approx(last[method].old)
            distance = np.linalg.norm(walk.old_trajectory[step] - walk.old_previous, axis=1).mean()
            assert distance == pytest.approx(drift[aligner]["distance"], rel=1e-4)


def test_the_map_shows_as_many_classes_as_there_are_colours(run_folders, monkeypatch, small_maps):
    monkeypatch.setattr("elign.lab.report.latent_space.CLASS_COLOURS", 3)
    walk = run_walk(read_run(RunDir(run_folders / "lucir")))
    assert set(walk.old_labels[embed(walk).old_index].tolist()) == {0, 3, 6}
    assert len(set(walk.old_labels.tolist())) == walk.old_classes == 7


def test_another_kind_of_aligner_is_refused(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "run")
    aligners = tmp_path / "run" / "task-02" / "aligners"
    shutil.copy(aligners / "ridge.safetensors", aligners / "eli.safetensors")
    run = read_run(RunDir(tmp_path / "run"))
    with pytest.raises(DamagedRunError, match="not an energy aligner"):
        run_walk(run)
    z = torch.randn(8, 64)
    EnergyAligner(iterations=1, steps=4).fit_latents(z, z + 1).save(aligners / "eli.safetensors")
    assert len(run_walk(run).old_trajectory) == 5
