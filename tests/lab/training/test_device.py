from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elign.lab.models import make_backbone
from elign.lab.training import device
from elign.lab.training.device import Engine, Precision, SyncedNorm, choose_precision, synchronise


def test_channels_last_holds_for_images_and_weights():
    engine = Engine(accelerator="cpu", precision=Precision(channels_last=True))
    net = engine.place(make_backbone("conv", image_shape=(3, 8, 8)))
    assert engine.images(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
    assert net.layers[3].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_is_that_of_matrix_products(precision, dtype):
    engine = Engine(accelerator="cpu", precision=Precision(precision))
    with engine.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize("native", [True, False])
def test_only_fast_uses_what_the_processor_has(monkeypatch, native):
    monkeypatch.setattr(device, "bf16_is_native", lambda: native)
    assert choose_precision(fast=False) == Precision("32", channels_last=False)
    assert choose_precision(fast=True, accelerator="cpu") == Precision("bf16" if native else "32", channels_last=True)


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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A group of one process: its batch is the whole batch."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def norms():
    torch.manual_seed(0)
    plain, synced = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    synced.load_state_dict(plain.state_dict())
    synchronise(synced, torch.device("cpu"))
    return plain, synced


@pytest.mark.usefixtures("alone")
def test_is_a_batch_norm():
    plain, synced = norms()
    assert isinstance(synced, SyncedNorm)
    for number in range(3):
        x = (number + torch.randn(5, 3, 2, 2)).requires_grad_()
        y = x.detach().clone().requires_grad_()
        one, two = plain(x), synced(y)
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        towards = torch.randn_like(one)
        one.backward(towards)
        two.backward(towards)
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(plain.weight.grad, synced.weight.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(plain.state_dict(), synced.state_dict())


@pytest.mark.usefixtures("alone")
def test_evaluation_and_the_type_of_numbers_stay_as_they_are():
    plain, synced = norms()
    x = torch.randn(5, 3, 2, 2)
    assert synced(x.bfloat16()).dtype == torch.bfloat16
    synced.load_state_dict(plain.state_dict())
    assert torch.equal(plain.eval()(x), synced.eval()(x))
