"""Aligners and gates as `torch.export` programs, also those of one's own. What comes out wrong is not written."""

from __future__ import annotations

import pytest
import torch
from tests.exporting import GATES, aligned, drifted, energy, head_of

import elign
from elign.export import ExportError, Recording, export_torch


@pytest.mark.parametrize("gate", ["none", "prediction", "soft prediction", "energy", "probe"])
def test_torch_export_of_an_aligner(tmp_path, gate):
    aligner, head, z = energy((8, 8)), head_of(), drifted(seed=8)[1]
    gate = GATES[gate](aligner)
    made = export_torch(aligner, tmp_path / "aligner.pt2", gate=gate, head=head, example=z[:1])
    program = torch.export.load(made.path)
    for rows in (1, 3, 200):
        expected = aligned(aligner, gate, head, z[:rows])
        torch.testing.assert_close(program.module()(z[:rows]), expected, rtol=1e-5, atol=1e-5)
    assert made.difference < 1e-5
    # Neither the example nor the maker's folders are in the file.
    assert not program.example_inputs[0][0].any()
    assert b'.py\\"' not in made.path.read_bytes()


def test_noise_is_refused_or_left_out(tmp_path):
    noisy, quiet = energy((8,)), energy((8,))
    noisy.noise = 1.0
    with pytest.raises(ExportError, match="drop_noise=True"):
        export_torch(noisy, tmp_path / "a.pt2")
    made = export_torch(noisy, tmp_path / "a.pt2", drop_noise=True)
    z = drifted()[1]
    torch.testing.assert_close(torch.export.load(made.path).module()(z), quiet.align(z))
    assert noisy.noise == 1.0


class Half(elign.Aligner):
    learns = False

    def _move(self, rows, generator):
        return rows / 2


def test_an_aligner_that_does_not_say_what_it_takes_needs_an_example(tmp_path):
    with pytest.raises(elign.OptionError, match="example=latents"):
        export_torch(Half(), tmp_path / "a.pt2")


class Branching(Half):
    def _move(self, rows, generator):
        return rows / 2 if rows.sum() > 0 else rows


class Wrong(Half):
    def _move(self, rows, generator):
        return rows * 3 if torch.compiler.is_exporting() else rows / 2


class SometimesNaN(Half):
    def _move(self, rows, generator):
        largest = rows[:, :1] == rows[:, :1].max()
        return torch.where(largest, torch.nan, rows / 2) if torch.compiler.is_exporting() else rows / 2


@pytest.mark.parametrize(
    ("aligner", "message"),
    [(Branching(), "cannot record"), (Wrong(), "something else"), (SometimesNaN(), "NaN where PyTorch gives")],
)
def test_what_comes_out_wrong_is_not_written(tmp_path, aligner, message):
    path = tmp_path / "a.pt2"
    path.write_text("before")
    with pytest.raises(ExportError, match=message):
        export_torch(aligner, path, example=drifted()[1])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_graph_is_written_if_one_insists(tmp_path):
    made = export_torch(Wrong(), tmp_path / "a.pt2", example=drifted()[1], verify=False)
    assert made.difference is None
    assert made.path.exists()


def test_random_numbers_are_left_alone(tmp_path, shift, untouched_random_state):
    export_torch(shift, tmp_path / "a.pt2")


def compared(expected, result):
    return Recording(None, (torch.zeros(len(expected), 1),), expected, ("x", "y")).compare(lambda x: result[: len(x)])


def test_scores_that_stand_for_never_do_not_excuse_the_others():
    expected = torch.tensor([[1.0, -5e5]]).repeat(100, 1)
    assert compared(expected, expected * (1 + 1e-6)) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ExportError, match="in 101 of 101 rows"):
        compared(expected, expected + torch.tensor([0.01, 0.0]))


def test_nan_of_the_model_itself_is_a_difference():
    expected = torch.ones(100, 2)
    expected[50] = torch.nan
    assert compared(expected, expected) == torch.inf
