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


def fit(data):
    return elign.ClassStatistics.from_data(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), "1", data)


def batches(count=20):
    return [(torch.randn(4, 6), torch.arange(4) % 2) for _ in range(count)]


def repair():
    z, labels = torch.randn(200, 5), torch.arange(200) % 4
    z += 5 * torch.eye(5)[labels]
    old = labels < 2
    statistics = elign.ClassStatistics().update(z[old], labels[old])
    elign.Repair(force=True).fit_latents(z[~old], z[~old] + 1, labels[~old], statistics=statistics)


@pytest.mark.parametrize(
    ("work", "shown", "left"),
    [
        (lambda: fit(batches()), "of 20", True),
        (lambda: fit(iter(batches())), "latents, batch: 9", False),  # data of unknown length
        (
            lambda: elign.EnergyAligner(iterations=300).fit_latents(torch.zeros(64, 5), torch.ones(64, 5)),
            "of 300",
            True,
        ),
        (repair, "repair: ", False),
    ],
)
def test_long_work_says_how_far_it_is_and_cleans_up(monkeypatch, clock, work, shown, left):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    work()
    text = terminal.getvalue()
    assert shown in text
    assert ("s left" in text) is left
    assert text.split("\r")[-1] == "\x1b[K"


def test_nothing_is_shown_where_there_is_no_terminal(monkeypatch, clock, capsys):
    fit(batches())
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr", None)
    fit(batches())


def test_short_work_shows_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    fit(batches(2))
    assert terminal.getvalue() == ""
