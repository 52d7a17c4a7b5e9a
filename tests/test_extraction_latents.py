"""`Latents`: what goes into a model's head, read off without a trace."""

from __future__ import annotations

import pytest
import torch
from tests.spies import X
from torch import nn

import elign
from elign import AttachError, EnergyAligner, Latents, MeanShift


class Heads(nn.Module):
    """Calls its head in whatever way it is told to."""

    def __init__(self, call):
        super().__init__()
        self.parts = nn.ModuleDict({"head": nn.Linear(2, 3), "unused": nn.Linear(2, 3)})
        self.call = call

    def forward(self, x):
        return self.call(self.parts["head"], x)


def test_latents_are_what_goes_into_the_head(net):
    x = torch.randn(9, 5)
    assert torch.equal(Latents(net, "fc")(x), net.body(x))
    assert torch.equal(Latents(net, net.fc)(x), net.body(x))


def test_deep_names_and_modules_find_the_same_head():
    model = Heads(lambda head, x: head(x * 3))
    for head in ("parts.head", model.parts["head"]):
        assert torch.equal(Latents(model, head)(X), X * 3)


def test_rows_of_several_calls_follow_each_other():
    model = Heads(lambda head, x: (head(x), head(x.reshape(4, 5, 2) + 1)))
    assert torch.equal(Latents(model, "parts.head")(X), torch.cat([X, X + 1]))


def test_latents_may_be_keyword_arguments():
    model = Heads(lambda head, x: head(input=x + 1))
    assert torch.equal(Latents(model, "parts.head", argument="input")(X), X + 1)
    with pytest.raises(AttachError, match="input"):
        Latents(model, "parts.head")(X)


def test_latents_may_be_another_positional_argument():
    class Two(nn.Module):
        def forward(self, other, z):
            return z

    model = nn.Module()
    model.head = Two()
    model.forward = lambda x: model.head("other", x)
    assert torch.equal(Latents(model, "head", argument=1)(X), X)
    assert torch.equal(Latents(model, "head", argument=-1)(X), X)


def test_a_head_that_is_never_called_is_an_error():
    with pytest.raises(AttachError, match=r"never called its module 'parts.unused'"):
        Latents(Heads(lambda head, x: head(x)), "parts.unused")(X)


def test_a_wrong_name_suggests_and_a_foreign_head_is_refused(net):
    with pytest.raises(AttachError, match="'fc'"):
        Latents(net, "fcc")
    with pytest.raises(AttachError, match="not a part"):
        Latents(net, nn.Linear(2, 2))


def test_an_attached_aligner_is_not_seen(net, shift):
    x = torch.randn(9, 5)
    expected = Latents(net, "fc")(x)
    with elign.attach(net, "fc", shift):
        assert torch.equal(Latents(net, "fc")(x), expected)


def test_an_aligner_attached_while_the_hook_is_made_does_not_matter_in_fit(net, shift):
    x = torch.randn(9, 5)
    plain = MeanShift().fit(Latents(net, "fc"), Latents(net, "fc"), [x])
    with elign.attach(net, "fc", shift):
        again = MeanShift().fit(Latents(net, "fc"), Latents(net, "fc"), [x])
    assert torch.equal(plain.shift, again.shift)


@pytest.mark.parametrize("fails", [False, True])
def test_no_hook_is_left_behind(fails):
    def call(head, x):
        head(x)
        if fails:
            raise ZeroDivisionError

    model = Heads(call)
    if fails:
        with pytest.raises(ZeroDivisionError):
            Latents(model, "parts.head")(X)
    else:
        Latents(model, "parts.head")(X)
    assert not model.parts["head"]._forward_pre_hooks


def test_a_head_that_works_in_place_does_not_change_caught_latents():
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 3)))
    x = torch.tensor([[-1.0, 1.0]])
    assert torch.equal(Latents(model, "1")(x.clone()), x)


def test_gradients_flow_through_latents(net):
    x = torch.randn(9, 5, requires_grad=True)
    Latents(net, "fc")(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_latents_of_models_in_fit(net):
    torch.manual_seed(0)
    previous, current = type(net)(), type(net)()
    data = [(torch.randn(16, 5), torch.zeros(16)) for _ in range(3)]
    aligner = EnergyAligner(hidden=(4,), iterations=5).fit(Latents(previous, "fc"), Latents(current, "fc"), data)
    assert aligner.report.rows == 48
    assert aligner.report.dim == 6
    assert previous.training
    assert not previous.fc._forward_pre_hooks


def test_latents_are_read_off_the_model_inside_data_parallel():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    x = torch.randn(4, 3)
    for name in ("1", "module.1"):
        assert torch.equal(elign.Latents(nn.DataParallel(model), name)(x), model[0](x))
