import pytest
import torch

from elign.lab.experiments import speed
from elign.lab.experiments.speed import Speed, choose_speed
from elign.lab.models import make_backbone


def choose(**options):
    return choose_speed(lambda: make_backbone("conv", image_shape=(1, 8, 8)), (1, 8, 8), **options)


def test_what_the_user_says_is_not_measured(monkeypatch):
    monkeypatch.setattr(speed, "_seconds", lambda *args: pytest.fail("nothing is left open"))
    assert choose(precision="bf16", layout="plain") == Speed("bf16", False)
    assert choose(precision="32", layout="channels-last") == Speed("32", True)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({("32", False): 1.0, ("32", True): 0.95, ("bf16", False): 1.2, ("bf16", True): 0.99}, Speed("32", False)),
        ({("32", False): 1.0, ("32", True): 0.8, ("bf16", False): 1.2, ("bf16", True): 0.99}, Speed("32", True)),
        ({("32", False): 1.0, ("32", True): 0.8, ("bf16", False): 1.2, ("bf16", True): 0.4}, Speed("bf16", True)),
    ],
)
def test_the_fastest_wins_if_it_is_worth_it(monkeypatch, seconds, best):
    monkeypatch.setattr(speed, "bf16_is_native", lambda: True)
    monkeypatch.setattr(speed, "_seconds", lambda net, images, way: seconds[way.precision, way.channels_last])
    assert choose() == best


def test_bf16_is_not_even_tried_where_it_is_emulated(monkeypatch):
    tried = []
    monkeypatch.setattr(speed, "bf16_is_native", lambda: False)
    monkeypatch.setattr(speed, "_seconds", lambda net, images, way: tried.append(way) or 1.0)
    assert choose() == Speed("32", False)
    assert {way.precision for way in tried} == {"32"}


def test_measuring_leaves_the_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert choose() in (Speed("32", False), Speed("32", True), Speed("bf16", False), Speed("bf16", True))
    assert torch.equal(torch.rand(3), expected)


def test_what_is_not_to_be_measured_is_not():
    found = choose_speed(lambda: pytest.fail("no network is needed"), (3, 32, 32), measure=False)
    assert found == Speed("32", True)
