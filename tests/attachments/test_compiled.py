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


def test_attaching_again_leaves_alone_what_was_compiled(net, x, voting):
    other = torch.compile(copy.deepcopy(net), backend=(counting := CompileCounter()))
    with torch.no_grad():
        other(x)
        elign.attach(net, "fc", voting)
        other(x)
        compiled = counting.frame_count
        for _ in range(3):
            elign.detach(net)
            elign.attach(net, "fc", voting)
            other(x)
    assert counting.frame_count == compiled


def test_a_compiled_head_keeps_what_is_attached_in_copies(net, x, voting):
    net.fc = torch.compile(net.fc, backend=BACKEND)
    elign.attach(net, "fc", voting)
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(net)(x), net(x))


@pytest.fixture
def voting(net):
    torch.manual_seed(0)
    inputs, labels = torch.randn(60, 5), torch.arange(60) % 4
    new = [inputs[labels >= 2]]
    read = [elign.Latents(model, "fc") for model in (Net().eval(), net)]
    aligner = elign.EnergyAligner(iterations=10, steps=5).fit(*read, new)
    with torch.no_grad():
        z = net.body(inputs)
    aligned = elign.Aligned(aligner, elign.Gaussian().fit(z=aligner.align(z), labels=labels))
    parts = [elign.HeadLogits(), elign.NearestMean().fit(z=z, labels=labels), aligned]
    # Equal weights: each of them votes.
    voting = elign.Voting(parts, task_boundaries=2, standard_errors=float("inf"))
    return voting.fit(z=z, labels=labels, head=net.fc)


@pytest.mark.parametrize(
    ("order", "mode"),
    [
        ("attached first", torch.inference_mode),
        ("compiled first", torch.no_grad),
        ("attached to what was compiled", torch.no_grad),
    ],
)
def test_a_compiled_model_is_as_the_model(net, x, voting, order, mode):
    with mode():
        base = net(x)
        with elign.attach(net, "fc", voting):
            expected = net(x)
        if order == "attached first":
            elign.attach(net, "fc", voting)
        compiled = torch.compile(net, backend=BACKEND)
        if order != "attached first":
            torch.testing.assert_close(compiled(x), base)
            elign.attach(net if order == "compiled first" else compiled, "fc", voting)
        torch.testing.assert_close(compiled(x), expected)
        assert not torch.allclose(expected, base)
        elign.detach(net)
        torch.testing.assert_close(compiled(x), base)


def test_two_models_of_one_class_are_told_apart(net, x, voting):
    twin = copy.deepcopy(net)
    compiled, other = (torch.compile(model, backend=BACKEND) for model in (net, twin))
    elign.attach(net, "fc", voting)
    with torch.no_grad():
        torch.testing.assert_close(other(x), twin(x))
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(other(x), twin(x))
        assert not torch.allclose(net(x), twin(x))


def test_latents_are_read_and_aligners_fitted_on_compiled_models(net, x, voting):
    compiled = torch.compile(net, backend=BACKEND)
    with torch.no_grad():
        compiled(x)
        expected = net.body(x)
        for name in ("fc", "_orig_mod.fc"):
            assert torch.equal(elign.Latents(compiled, name)(x), expected)
    elign.EnergyAligner(iterations=2).fit(elign.Latents(compiled, "fc"), elign.Latents(compiled, "fc"), [x])


def test_a_compiled_model_is_exported_as_the_model(net, x, voting, tmp_path):
    compiled = torch.compile(net, backend=BACKEND)
    elign.attach(compiled, "fc", voting)
    export_model_torch(compiled, tmp_path / "model.pt2", x)
    program = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(x), net(x))
