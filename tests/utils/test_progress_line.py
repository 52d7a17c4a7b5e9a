"""The line that a long fit shows on a terminal."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import elign
from elign.utils import fitted


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by 0.4 s each time somebody looks at it."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(fitted.time, "monotonic", lambda: 0.4 * next(seconds))


def fit(batches=20):
    data = [(torch.randn(4, 6), torch.arange(4) % 2) for _ in range(batches)]
    return elign.ClassStatistics.from_data(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), "1", data)


def test_a_long_extraction_counts_its_batches_and_cleans_up(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    fit()
    shown = terminal.getvalue().split("\r")
    assert any("of 20" in line and "s left" in line for line in shown)
    assert shown[-1] == "\x1b[K"


def test_data_of_unknown_length_is_counted_without_an_end(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    data = ((torch.randn(4, 6), torch.arange(4) % 2) for _ in range(9))
    elign.ClassStatistics.from_data(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), "1", data)
    assert "latents, batch: 9" in terminal.getvalue()
    assert "left" not in terminal.getvalue()


def test_an_energy_model_shows_its_iterations(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    z = torch.randn(64, 5)
    elign.EnergyAligner(iterations=300).fit_latents(z, z + 1)
    assert "of 300" in terminal.getvalue()


def test_a_repair_shows_its_stages(monkeypatch, clock):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    z, labels = torch.randn(200, 5), torch.arange(200) % 4
    z += 5 * torch.eye(5)[labels]
    old = labels < 2
    statistics = elign.ClassStatistics().update(z[old], labels[old])
    elign.Repair(force=True).fit_latents(z[~old], z[~old] + 1, labels[~old], statistics=statistics)
    assert "repair: " in terminal.getvalue()


def test_nothing_is_shown_where_there_is_no_terminal(monkeypatch, clock, capsys):
    fit()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr", None)
    fit()


def test_a_short_fit_shows_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    fit(batches=2)
    assert terminal.getvalue() == ""
