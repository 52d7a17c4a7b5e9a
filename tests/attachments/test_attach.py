"""An aligner in front of a head: in evaluation mode the head reads aligned latents, and nothing else changes."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tests.aligning import expected_output
from torch import nn

import elign
from elign import AttachError, Attachment, ByMask, ByPrediction, ByProbe, NotFittedError
from elign.attachments import attachments_of


@pytest.mark.parametrize("how", ["by name", "by module", "through a wrapper"])
def test_the_head_reads_aligned_latents_until_detached(net, shift, x, how):
    plain = net(x)
    model = nn.DataParallel(net) if how == "through a wrapper" else net
    heads = {"by name": "fc", "by module": net.fc, "through a wrapper": "module.fc"}
    attachment = elign.attach(model, heads[how], shift)
    assert isinstance(attachment, Attachment)
    assert torch.equal(net(x), expected_output(net, shift, x))
    assert torch.equal(model(x), net(x))
    assert not torch.allclose(net(x), plain)
    attachment.detach()
    assert torch.equal(net(x), plain)


def test_training_mode_is_untouched(net, shift, x):
    net.train()
    net.body[3].eval()
    torch.manual_seed(0)
    plain = net(x)
    with elign.attach(net, "fc", shift):
        assert torch.equal(net(x), plain)
        # A frozen head is often left in evaluation mode while the rest of the model trains.
        net.fc.eval()
        torch.manual_seed(0)
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


def test_modes_of_the_caller(net, short_energy, x):
    elign.attach(net, "fc", short_energy)
    with torch.autocast("cpu", torch.bfloat16):
        result = net(x)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert torch.equal(net(x), expected_output(net, short_energy, x))
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
        (1, lambda head, z: head(torch.ones_like(z), z)),
    ],
)
def test_the_latent_may_be_any_argument(shift, argument, call):
    model, z = Caller(call).eval(), torch.randn(3, 6)
    latents = [shift.align(z), torch.ones_like(z)]
    expected = model.head(*(latents[::-1] if argument == 1 else latents))
    with elign.attach(model, "head", shift, argument=argument):
        assert torch.equal(model(z), expected)


def test_a_latent_that_is_not_where_it_should_be_is_an_error_at_the_call(shift):
    model = Caller(lambda head, z: head(input1=z, input2=z)).eval()
    with elign.attach(model, "head", shift), pytest.raises(AttachError, match="input1"):
        model(torch.zeros(1, 6))


def test_latents_of_any_shape(shift):
    model, z = nn.Sequential(nn.Identity(), nn.Linear(6, 2)).eval(), torch.randn(2, 7, 6)
    with elign.attach(model, "1", shift):
        assert torch.equal(model(z), model[1].forward(shift.align(z)))
        assert model(z[:0]).shape == (0, 7, 2)


# --- Attaching, replacing and detaching: what is refused, what may be exchanged, and what is left behind.


def test_the_context_manager_detaches_also_after_an_error(net, shift):
    attachment = elign.attach(net, "fc", shift)
    with pytest.raises(ZeroDivisionError), attachment as entered:
        _ = 1 / (entered is not attachment)
    assert not net.fc._forward_pre_hooks


def test_detaching_twice_does_nothing_more(net, shift, x):
    attachment = elign.attach(net, "fc", shift)
    attachment.detach()
    second = elign.attach(net, "fc", shift)
    attachment.detach()
    assert torch.equal(net(x), expected_output(net, shift, x))
    second.detach()


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(("aligner", "split", "classifier", "aligned"), repeat=2))
)
def test_what_conflicts_on_one_head_is_refused_unless_it_replaces_the_other(net, shift, first, second):
    aligned = elign.Voting([elign.Aligned(shift, elign.HeadLogits())], task_boundaries=2)
    aligned.fit(z=torch.randn(8, 6), labels=torch.arange(8) % 4, logits=torch.randn(8, 4))
    what = {"classifier": elign.HeadLogits(), "aligned": aligned}
    outputs = {"split": elign.SplitOutputs(range(2))}
    there = elign.attach(net, "fc", what.get(first, shift), outputs=outputs.get(first))
    options = {"what": what.get(second, shift), "outputs": outputs.get(second)}
    together = {first, second} == {"aligner", "classifier"}
    if not together:
        with pytest.raises(AttachError, match=rf"{type(there.what).__name__}.*replace=True"):
            elign.attach(net, "fc", **options)
        assert attachments_of(net) == [there]
    made = elign.attach(net, "fc", **options, replace=True)
    assert set(attachments_of(net)) == ({there, made} if together else {made})


def test_a_replacement_leaves_what_goes_with_it(net, shift, short_energy, x):
    elign.attach(net, "fc", shift)
    elign.attach(net, "fc", elign.HeadLogits())
    elign.attach(net, "fc", short_energy, replace=True)
    elign.attach(net, "fc", elign.HeadLogits(), replace=True)
    assert torch.equal(net(x), expected_output(net, short_energy, x))
    assert elign.detach(net) == 2


def test_what_cannot_be_attached_is_named_and_replaces_nothing(net, shift, means, pairs):
    there = elign.attach(net, "fc", shift)
    wide = elign.MeanShift().fit_latents(torch.zeros(5, 7), torch.zeros(5, 7))
    forward = elign.MeanShift().fit_latents(*pairs, direction="forward")
    outputs = elign.SplitOutputs(range(2))
    for error, says, what, options in (
        (AttachError, "not a Linear", nn.Linear(6, 6), {}),
        (AttachError, "got a int", shift, {"gate": 2}),
        (AttachError, "dimension 6, the aligner's is 7", wide, {}),
        (AttachError, "not both", shift, {"gate": elign.Always(), "outputs": outputs}),
        (AttachError, "SplitOutputs, such as", shift, {"outputs": range(2)}),
        (AttachError, "no use for either", elign.HeadLogits(), {"outputs": outputs}),
        (AttachError, "fitted forward", forward, {}),
        (AttachError, "fitted forward", elign.Aligned(forward, means), {}),
        (NotFittedError, "EnergyAligner", elign.EnergyAligner(), {}),
        (NotFittedError, "ByProbe", shift, {"gate": ByProbe()}),
    ):
        with pytest.raises(error, match=says):
            elign.attach(net, "fc", what, replace=True, **options)
    for head in (None, 5, ["fc"]):
        with pytest.raises(AttachError, match="head"):
            elign.attach(net, head, shift)
    assert attachments_of(net) == [there]


def test_detach_finds_all_and_leaves_hooks_of_others(net, shift):
    net.other = nn.Linear(6, 2)
    calls = []
    net.fc.register_forward_pre_hook(lambda module, args: calls.append(1))
    elign.attach(net, "fc", shift)
    elign.attach(net, "other", shift)
    assert elign.detach(net) == 2
    assert elign.detach(net) == 0
    net(torch.zeros(1, 5))
    assert calls == [1]


def test_aligner_and_gate_may_be_exchanged(net, shift, x):
    other = elign.Identity().fit_latents(torch.zeros(1, 6), torch.zeros(1, 6))
    plain = net(x)
    with elign.attach(net, "fc", shift) as attachment:
        attachment.what = other
        assert torch.equal(net(x), plain)
        attachment.what, attachment.gate = shift, ByMask(torch.zeros(9, dtype=torch.bool))
        assert torch.equal(net(x), plain)


# --- Gates in attachments: what a gate is asked, what it gets to see, and that the head reads what it decides.


class Counting(nn.Linear):
    def forward(self, z):
        self.seen = [*getattr(self, "seen", []), z.detach().clone()]
        return super().forward(z)


def test_a_prediction_gate_asks_the_head_once_about_unaligned_latents(net, shift, x):
    net.fc = Counting(6, 4).eval()
    hooks = []
    net.fc.register_forward_pre_hook(lambda module, args: hooks.append(1))
    latents = net.body(x)
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        net(x)
    asked, read = net.fc.seen
    assert torch.equal(asked, latents)
    where = nn.functional.linear(latents, net.fc.weight, net.fc.bias).argmax(dim=1) < 2
    assert torch.equal(read, shift.align(latents, where=where))
    assert hooks == [1]


def test_a_head_that_works_in_place_does_not_spoil_the_latents(net, pairs, x):
    shift = elign.MeanShift().fit_latents(pairs[1], pairs[0])  # by about +2: nothing that the head could cut off
    net.fc = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4)).eval()
    latents = net.body(x).detach()
    where = net.fc(latents.clone()).argmax(dim=1) < 2
    assert 0 < where.sum() < 9
    expected = net.fc(shift.align(latents, where=where))
    with elign.attach(net, "fc", shift, gate=ByPrediction(2)):
        assert torch.equal(net(x), expected)
        with torch.no_grad():
            assert torch.equal(net(x), expected)


@pytest.mark.parametrize("kind", ["mask", "soft prediction", "probe", "soft probe", "energy"])
def test_every_gate_decides_over_what_the_head_reads(net, short_energy, x, kind):
    latents = net.body(x)
    gates = {
        "mask": lambda: ByMask(torch.arange(9) % 2 == 0),
        "soft prediction": lambda: ByPrediction(2, soft=True),
        "probe": lambda: ByProbe().fit(latents[:4], latents[4:]),
        "soft probe": lambda: ByProbe(soft=True).fit(latents[:4], latents[4:]),
        "energy": lambda: elign.ByEnergy(quantile=0.5).fit(short_energy, latents),
    }
    gate = gates[kind]()
    where = gate(latents, head=net.fc, aligner=short_energy)
    assert where.float().std() > 0
    with elign.attach(net, "fc", short_energy, gate=gate):
        assert torch.equal(net(x), expected_output(net, short_energy, x, where=where))


def test_a_gate_sees_latents_head_and_aligner_and_nothing_else(net, shift, x):
    seen = []

    class Nosy(elign.Gate):
        learns = False

        def weights(self, *args, **kwargs):
            seen.append((args, kwargs))
            return torch.ones(len(args[0]), dtype=torch.bool)

    with elign.attach(net, "fc", shift, gate=Nosy()):
        net(x.requires_grad_())
    (((z, head, aligner), kwargs),) = seen
    assert torch.equal(z, net.body(x))
    assert not z.requires_grad
    assert torch.equal(head(z), net.fc.forward(z))
    assert aligner is shift
    assert not kwargs


# --- Models with an attached aligner, copied, pickled, replicated or wrapped: they align too.


def test_a_deep_copy_aligns_too_and_is_independent(net, shift, x):
    attachment = elign.attach(net, "fc", shift)
    aligned = net(x)
    copied = copy.deepcopy(net)
    assert torch.equal(copied(x), aligned)
    assert elign.detach(copied) == 1
    assert not torch.allclose(copied(x), aligned)
    assert torch.equal(net(x), aligned)
    other = copy.deepcopy(net)
    attachment.detach()
    assert not torch.allclose(net(x), aligned)
    assert torch.equal(other(x), aligned)
    shift.shift.zero_()
    assert torch.equal(other(x), aligned)


@pytest.mark.parametrize("kind", ["aligner", "gate", "outputs", "classifier"])
def test_a_replica_with_other_weights_says_what_a_model_with_these_weights_says(net, shift, x, kind):
    what = elign.HeadLogits() if kind == "classifier" else shift
    options = {"gate": {"gate": ByPrediction(2)}, "outputs": {"outputs": elign.SplitOutputs(range(2))}}.get(kind, {})
    elign.attach(net, "fc", what, **options)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.fc.weight.mul_(-2)
    replica = net._replicate_for_data_parallel()
    replica.body, replica.fc = net.body, net.fc._replicate_for_data_parallel()
    replica.fc.weight, replica.fc.bias = net.fc.weight * -2, net.fc.bias * 1
    assert torch.equal(replica(x), other(x))
    assert not torch.allclose(replica(x), net(x))
