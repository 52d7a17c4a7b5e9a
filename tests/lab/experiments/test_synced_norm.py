import pytest
import torch
from torch import nn

from elign.lab.experiments.synced_norm import SyncedNorm, synchronise


@pytest.fixture(scope="module", autouse=True)
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


def test_evaluation_and_the_type_of_numbers_stay_as_they_are():
    plain, synced = norms()
    x = torch.randn(5, 3, 2, 2)
    assert synced(x.bfloat16()).dtype == torch.bfloat16
    synced.load_state_dict(plain.state_dict())
    assert torch.equal(plain.eval()(x), synced.eval()(x))


def test_finds_every_batch_norm_and_keeps_its_parameters():
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(nn.BatchNorm2d(2)), nn.BatchNorm1d(3))
    before = [id(parameter) for parameter in net.parameters()]
    synchronise(net, torch.device("cpu"))
    assert [id(parameter) for parameter in net.parameters()] == before
    assert [type(part).__name__ for part in net.modules() if "Norm" in type(part).__name__] == [
        "SyncedNorm",
        "BatchNorm1d",
    ]
