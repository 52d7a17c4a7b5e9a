"""An aligner in front of a head: in evaluation mode the head reads aligned latents, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from tests.aligning import expected_output
from torch import nn

import elign
from elign import AttachError, Attachment, ByPrediction


@pytest.mark.parametrize("by_name", [True, False])
def test_the_head_reads_aligned_latents_until_detached(net, shift, x, by_name):
    plain = net(x)
    attachment = elign.attach(net, "fc" if by_name else net.fc, shift)
    assert isinstance(attachment, Attachment)
    assert torch.equal(net(x), expected_output(net, shift, x))
    assert not torch.allclose(net(x), plain)
    attachment.detach()
    assert torch.equal(net(x), plain)


def test_energy_aligners_work_the_same(net, short_energy, x):
    with elign.attach(net, "fc", short_energy):
        assert torch.equal(net(x), expected_output(net, short_energy, x))


def test_training_mode_is_untouched(net, shift, x):
    net.train()
    net.body[3].eval()
    torch.manual_seed(0)
    plain = net(x)
    with elign.attach(net, "fc", shift):
        assert torch.equal(net(x), plain)
        net.eval()
        assert not torch.allclose(net(x), plain)


def test_nothing_is_added_to_the_model(net, short_energy):
    state, parts, parameters = list(net.state_dict()), list(net.modules()), len(list(net.parameters()))
    with elign.attach(net, "fc", short_energy, gate=ByPrediction(2)):
        assert list(net.state_dict()) == state
        assert list(net.modules()) == parts
        assert len(list(net.parameters())) == parameters
        net.load_state_dict(net.state_dict())
    assert not net.fc._forward_pre_hooks
    assert not net.fc._forward_pre_hooks_with_kwargs


def test_a_frozen_head_in_a_model_that_trains_is_left_alone(net, shift):
    z = torch.randn(4, net.fc.in_features)
    plain = net.fc(z)
    elign.attach(net, "fc", shift)
    assert not torch.equal(net.fc(z), plain)
    net.train()
    net.fc.eval()
    assert torch.equal(net.fc(z), plain)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_that_keep_no_gradients(net, short_energy, x, mode):
    with elign.attach(net, "fc", short_energy, gate=ByPrediction(2)):
        expected = net(x)
        with mode():
            assert torch.equal(net(x), expected)


def test_autocast(net, short_energy, x):
    with elign.attach(net, "fc", short_energy), torch.autocast("cpu", torch.bfloat16):
        result = net(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected_output(net, short_energy, x), rtol=0.1, atol=0.1)


def test_gradients_reach_the_input(net, shift, x):
    x.requires_grad_()
    with elign.attach(net, "fc", shift):
        net(x).sum().backward()
    aligned = x.grad.clone()
    x.grad = None
    net(x).sum().backward()
    torch.testing.assert_close(aligned, x.grad)


# --- heads of all kinds ----------------------------------------------------------------------------------


class Output(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.wrap = wrap

    def forward(self, z):
        return self.wrap(self.inner(z))


@pytest.mark.parametrize(
    "wrap",
    [lambda y: {"extra": y.sum(), "logits": y}, lambda y: {"scores": y}, lambda y: (y, y.sum()), lambda y: [y]],
    ids=["logits", "single", "tuple", "list"],
)
def test_heads_may_return_anything(net, shift, x, wrap):
    net.fc = Output(wrap).eval()
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        result = net(x)
    plain = net.fc.inner(net.body(x))
    where = plain.argmax(dim=1) < 2
    expected = net.fc(shift.align(net.body(x), where=where))
    assert type(result) is type(expected)
    first = lambda out: out.get("logits", next(iter(out.values()))) if isinstance(out, dict) else out[0]  # noqa: E731
    assert torch.equal(first(result), first(expected))


class Caller(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.head = nn.Bilinear(6, 6, 2)
        self.call = call

    def forward(self, z):
        return self.call(self.head, z)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        (0, lambda head, z: head(z, torch.ones_like(z))),
        (-2, lambda head, z: head(z, torch.ones_like(z))),
        ("input1", lambda head, z: head(input1=z, input2=torch.ones_like(z))),
    ],
)
def test_the_latent_may_be_any_argument(shift, argument, call):
    model, z = Caller(call).eval(), torch.randn(3, 6)
    expected = model.head(shift.align(z), torch.ones_like(z))
    with elign.attach(model, "head", shift, argument=argument):
        assert torch.equal(model(z), expected)


@pytest.mark.parametrize("argument", [1, -1])
def test_other_arguments_stay_as_they_are(shift, argument):
    model, z = Caller(lambda head, z: head(torch.ones_like(z), z)).eval(), torch.randn(3, 6)
    with elign.attach(model, "head", shift, argument=argument):
        assert torch.equal(model(z), model.head.forward(torch.ones_like(z), shift.align(z)))


def test_a_latent_that_is_not_where_it_should_be_is_an_error_at_the_call(shift):
    model = Caller(lambda head, z: head(input1=z, input2=z)).eval()
    with elign.attach(model, "head", shift), pytest.raises(AttachError, match="input1"):
        model(torch.zeros(1, 6))


def test_latents_of_any_shape(shift):
    model, z = nn.Sequential(nn.Identity(), nn.Linear(6, 2)).eval(), torch.randn(2, 7, 6)
    with elign.attach(model, "1", shift):
        assert torch.equal(model(z), model[1].forward(shift.align(z)))
        assert model(z[:0]).shape == (0, 7, 2)
