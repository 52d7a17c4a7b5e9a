from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.experiments.engine import Engine
from elign.lab.models import make_backbone


def test_plain_images_stay_as_they_are():
    images = torch.randn(2, 3, 8, 8)
    placed = Engine(accelerator="cpu").images(images)
    assert placed.is_contiguous()
    assert torch.equal(placed, images)


def test_channels_last_holds_for_images_and_weights():
    engine = Engine(accelerator="cpu", channels_last=True)
    net = engine.place(make_backbone("conv", image_shape=(3, 8, 8)))
    assert engine.images(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
    assert net.layers[3].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_is_that_of_matrix_products(precision, dtype):
    engine = Engine(accelerator="cpu", precision=precision)
    with engine.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_one_process_has_all_rows():
    engine = Engine(accelerator="cpu")
    assert engine.is_main
    assert engine.processes == 1
    assert torch.equal(engine.share(torch.arange(7)), torch.arange(7))
    assert torch.equal(engine.of_first(lambda: torch.ones(2)), torch.ones(2))
    assert engine.purpose("order") == "order"
    with pytest.raises(KeyError), engine.together():
        raise KeyError


def _processes(world):
    return [SimpleNamespace(processes=world, rank=rank) for rank in range(world)]


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 5))
def test_the_parts_of_all_processes_gathered_batch_by_batch_are_the_rows(count, size, world):
    rows = torch.arange(count) + 100
    found = []
    parts = [Engine.part(process, rows, size) for process in _processes(world)]
    assert len({(len(part), size) for part, size in parts}) == 1
    for batches in zip(*(part.split(each) for part, each in parts), strict=True):
        assert all(len(batch) <= size for batch in batches)
        found += torch.cat(batches).tolist()
    assert found[:count] == rows.tolist()


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 4))
def test_the_shares_of_all_processes_make_up_the_batches_of_one(count, each, world):
    rows = torch.randperm(count)
    shares = [Engine.share(process, rows) for process in _processes(world)]
    assert len({len(share) for share in shares}) == 1
    kept = rows[: count // world * world]
    for number, batch in enumerate(kept.split(each * world) if len(kept) else ()):
        theirs = torch.cat([share[number * each : (number + 1) * each] for share in shares])
        assert sorted(theirs.tolist()) == sorted(batch.tolist())
