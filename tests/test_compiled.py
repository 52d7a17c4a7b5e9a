"""Models that torch.compile made: what is attached has its effect, and its end, whichever came first."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo
from tests.conftest import Net
from torch._dynamo.testing import CompileCounter

import elign
from elign.export import export_model_torch

# Records and differentiates as the default does, but leaves out the C++ compiler.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def as_in_a_new_process():
    """Torch's compiler as it is before the first attachment."""
    torch._dynamo.config.skip_nnmodule_hook_guards = True
    torch.compiler.reset()


def test_attaching_again_leaves_alone_what_was_compiled(net, x, blend):
    other = torch.compile(copy.deepcopy(net), backend=(counting := CompileCounter()))
    with torch.no_grad():
        other(x)
        elign.attach(net, "fc", blend)
        other(x)
        compiled = counting.frame_count
        for _ in range(3):
            elign.detach(net)
            elign.attach(net, "fc", blend)
            other(x)
    assert counting.frame_count == compiled


def test_a_compiled_head_keeps_what_is_attached_in_copies(net, x, blend):
    net.fc = torch.compile(net.fc, backend=BACKEND)
    elign.attach(net, "fc", blend)
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(net)(x), net(x))


@pytest.fixture
def blend(net):
    torch.manual_seed(0)
    old = Net().eval()
    batches = [(torch.randn(60, 5), torch.arange(60) % 4)]
    new = [(x[y >= 2], y[y >= 2]) for x, y in batches]
    return elign.fit_blend(old, net, "fc", new, batches, known=2, aligner=elign.EnergyAligner(iterations=10, steps=5))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("order", ["attached first", "compiled first", "attached to what was compiled"])
def test_a_compiled_model_is_as_the_model(net, x, blend, order, mode):
    with mode():
        base = net(x)
        with elign.attach(net, "fc", blend):
            expected = net(x)
        if order == "attached first":
            elign.attach(net, "fc", blend)
        compiled = torch.compile(net, backend=BACKEND)
        if order != "attached first":
            torch.testing.assert_close(compiled(x), base)
            elign.attach(net if order == "compiled first" else compiled, "fc", blend)
        torch.testing.assert_close(compiled(x), expected)
        assert not torch.allclose(expected, base)
        elign.detach(net)
        torch.testing.assert_close(compiled(x), base)


def test_two_models_of_one_class_are_told_apart(net, x, blend):
    twin = copy.deepcopy(net)
    compiled, other = (torch.compile(model, backend=BACKEND) for model in (net, twin))
    elign.attach(net, "fc", blend)
    with torch.no_grad():
        torch.testing.assert_close(other(x), twin(x))
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(other(x), twin(x))
        assert not torch.allclose(net(x), twin(x))


def test_latents_are_read_and_aligners_fitted_on_compiled_models(net, x, blend):
    compiled = torch.compile(net, backend=BACKEND)
    with torch.no_grad():
        compiled(x)
        expected = net.body(x)
        for name in ("fc", "_orig_mod.fc"):
            assert torch.equal(elign.Latents(compiled, name)(x), expected)
    elign.EnergyAligner(iterations=2).fit(elign.Latents(compiled, "fc"), elign.Latents(compiled, "fc"), [x])


def test_a_compiled_model_is_exported_as_the_model(net, x, blend, tmp_path):
    compiled = torch.compile(net, backend=BACKEND)
    elign.attach(compiled, "fc", blend)
    export_model_torch(compiled, tmp_path / "model.pt2", x)
    program = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(x), net(x))
