"""The state of a fitted aligner, for all aligners: copies, files, state dicts and threads keep every bit."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from tests.aligning import seeded
from torch import nn

from elign import Aligner


def test_a_deep_copy_is_independent(fitted, pairs):
    expected = seeded(fitted, pairs[1])
    copied = copy.deepcopy(fitted)
    assert torch.equal(seeded(copied, pairs[1]), expected)
    copied.fit_latents(pairs[1], pairs[0] * 3)
    assert torch.equal(seeded(fitted, pairs[1]), expected)


def test_saving_and_loading_changes_no_bit(fitted, pairs, tmp_path):
    path = fitted.save(tmp_path / "some" / "aligner.safetensors")
    for loaded in (Aligner.load(path), type(fitted).load(str(path))):
        assert type(loaded) is type(fitted)
        assert loaded.config() == fitted.config()
        assert torch.equal(seeded(loaded, pairs[1]), seeded(fitted, pairs[1]))
        assert not loaded.training


def test_double_precision_survives_a_file(make_aligner, pairs, tmp_path):
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = make_aligner().fit_latents(z_prev, z_cur)
    loaded = Aligner.load(aligner.save(tmp_path / "a"))
    assert torch.equal(seeded(loaded, z_cur), seeded(aligner, z_cur))
    fresh = make_aligner()
    fresh.load_state_dict(aligner.state_dict())
    assert torch.equal(seeded(fresh, z_cur), seeded(aligner, z_cur))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("before", [None, 6, 9])
def test_a_state_dict_loads_into_another_aligner_fresh_or_fitted(make_aligner, fitted, pairs, nested, before):
    other = make_aligner()
    if before:
        other.fit_latents(torch.randn(20, before), torch.randn(20, before))
    source, target = (nn.ModuleDict({"a": m, "b": nn.Linear(2, 2)}) if nested else m for m in (fitted, other))
    target.load_state_dict(source.state_dict())
    assert torch.equal(seeded(other, pairs[1]), seeded(fitted, pairs[1]))


def test_a_state_dict_with_missing_or_foreign_entries_is_refused(make_aligner, fitted):
    state = fitted.state_dict()
    with pytest.raises(RuntimeError, match="Unexpected"):
        make_aligner().load_state_dict({**state, "foreign": torch.zeros(1)})
    state.pop(next(iter(state)))
    with pytest.raises(RuntimeError):
        make_aligner().load_state_dict(state)


def test_moving_to_a_device_and_dtype_keeps_it_fitted(fitted, pairs):
    expected = seeded(fitted, pairs[1])
    torch.testing.assert_close(seeded(fitted.to("cpu").double(), pairs[1]), expected, rtol=1e-4, atol=1e-4)


def test_threads_may_share_an_aligner(fitted, pairs):
    expected = seeded(fitted, pairs[1])
    results: list[torch.Tensor] = []

    def work():
        results.extend(seeded(fitted, pairs[1]) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    assert all(torch.equal(result, expected) for result in results)


def test_training_mode_does_not_matter(fitted, pairs):
    assert torch.equal(seeded(fitted.train(), pairs[1]), seeded(fitted.eval(), pairs[1]))


def test_the_direction_is_saved_and_forgotten_with_the_next_fit(make_aligner, pairs, tmp_path):
    aligner = make_aligner().fit_latents(*pairs, direction="forward")
    assert Aligner.load(aligner.save(tmp_path / "a")).direction == "forward"
    again = make_aligner()
    again.load_state_dict(aligner.state_dict())
    assert again.direction == "forward"
    assert aligner.fit_latents(*pairs).direction == "backward"


def test_a_state_from_before_there_were_directions_is_backward(make_aligner, pairs):
    aligner = make_aligner().fit_latents(*pairs)
    state = aligner.state_dict()
    del state["is_forward"]
    again = make_aligner()
    again.load_state_dict(state)
    assert again.direction == "backward"
    assert torch.equal(seeded(again, pairs[1]), seeded(aligner, pairs[1]))


def test_what_is_made_under_inference_mode_can_be_loaded_into(make_aligner, fitted, pairs):
    for state in (fitted.state_dict(), make_aligner().state_dict()):
        with torch.inference_mode():
            fresh = make_aligner()
        fresh.load_state_dict(state)
        assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
