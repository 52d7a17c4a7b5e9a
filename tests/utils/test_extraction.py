"""`fit`, which reads latents off two models once per input: modes, batches, and what is no latent."""

from __future__ import annotations

import math
from collections import namedtuple
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elign
from elign import AttachError, EnergyAligner, Identity, LatentError, Latents, MeanShift, OptionError
from elign.utils.extraction import find_module, latent_of, logits_of, with_logits

Batch = namedtuple("Batch", "image label")


class Spy(nn.Module):
    """A linear map that counts its calls and notes its mode."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.tensor(factor))
        self.calls, self.rows, self.modes = 0, 0, set()

    def forward(self, x):
        self.calls += 1
        self.rows += len(x)
        self.modes |= {self.training, self.drop.training, torch.is_grad_enabled()}
        return self.drop(x) * self.weight


class Recorder(Identity):
    """Keeps the latents that it was given."""

    def _learn(self, z_prev, z_cur, progress):
        self.seen = z_prev, z_cur
        return super()._learn(z_prev, z_cur, progress)


X = torch.arange(40.0).reshape(20, 2)


def batches_of(size=8):
    return list(X.split(size))


@pytest.mark.parametrize("passes", [1, 3])
def test_each_model_sees_each_input_once_per_pass(passes):
    previous, current = Spy(1.0), Spy(2.0)
    recorder = Recorder().fit(previous, current, batches_of(), passes=passes)
    assert previous.calls == current.calls == 3 * passes
    assert previous.rows == current.rows == 20 * passes
    assert torch.equal(recorder.seen[0], X.repeat(passes, 1))
    assert torch.equal(recorder.seen[1], 2 * X.repeat(passes, 1))
    assert recorder.report.rows == 20 * passes


def test_models_run_in_evaluation_mode_without_gradients_and_get_their_modes_back():
    previous, current = Spy().train(), Spy().train()
    current.drop.eval()  # a frozen part of a model in training
    MeanShift().fit(previous, current, batches_of())
    assert previous.modes == current.modes == {False}
    assert (previous.training, previous.drop.training) == (True, True)
    assert (current.training, current.drop.training) == (True, False)


@pytest.mark.parametrize("where", ["model", "data", "inputs"])
def test_modes_come_back_after_an_error_too(where):
    previous, current = Spy().train(), Spy().train()
    current.drop.eval()

    def broken(*_):
        raise ZeroDivisionError

    def data():
        yield X
        if where == "data":
            broken()
        yield X

    with pytest.raises(ZeroDivisionError):
        MeanShift().fit(
            previous if where != "model" else (lambda x: broken()),
            current,
            data(),
            inputs=broken if where == "inputs" else None,
        )
    assert previous.training
    assert current.training
    assert not current.drop.training


def test_methods_of_a_model_run_in_evaluation_mode_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def features(self, x):
            return self.norm(x)

    old, new = Model(), Model()
    elign.MeanShift().fit(old.features, new.features, [torch.randn(8, 3)])
    assert old.norm.num_batches_tracked == new.norm.num_batches_tracked == 0
    assert old.training
    assert new.norm.training


@pytest.mark.parametrize("inputs", [lambda x: [x, x], lambda x: {"a": x, "b": x}, lambda x: Batch(x, x)])
def test_models_may_take_several_inputs_in_any_container(inputs):
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(()))
    seen = []
    model.forward = lambda x: (seen.append(type(x)), X)[1]
    MeanShift().fit(model, model, batches_of(20), inputs=inputs)
    assert issubclass(seen[0], type(inputs(X)))


def test_latents_with_more_dimensions_give_a_row_each():
    assert Recorder().fit(lambda x: x, lambda x: x, [X.reshape(2, 10, 2)]).report.rows == 20


def test_a_generator_is_read_once_and_a_second_pass_says_so():
    assert MeanShift().fit(Spy(), Spy(), (x for x in batches_of())).fitted
    with pytest.raises(LatentError, match=r"pass 2 of 2.*generator can be read only once"):
        MeanShift().fit(Spy(), Spy(), (x for x in batches_of()), passes=2)


@pytest.mark.parametrize("z", [torch.zeros(3), "latents", None, [torch.zeros(2, 2)]], ids=str)
def test_what_is_no_latent_is_an_error_that_names_the_model(z):
    with pytest.raises(LatentError, match="previous must return latents"):
        MeanShift().fit(lambda x: z, Spy(), batches_of())
    with pytest.raises(LatentError, match="current must return latents"):
        MeanShift().fit(Spy(), lambda x: z, batches_of())


def test_latents_of_different_shape_are_an_error_at_the_first_batch():
    batches = iter([torch.randn(4, 3), torch.randn(4, 3)])
    with pytest.raises(elign.LatentError, match="for the same batch"):
        elign.MeanShift().fit(nn.Linear(3, 5), nn.Linear(3, 6), batches)
    assert len(list(batches)) == 1


@pytest.mark.parametrize(
    ("option", "values"), [("passes", [0, -1, 1.5, None]), ("mixup", [0.0, -1.0, math.nan, math.inf, "1"])]
)
def test_options_out_of_range_are_an_error(option, values):
    for value in values:
        with pytest.raises(OptionError, match=option):
            MeanShift().fit(Spy(), Spy(), batches_of(), **{option: value})


def test_inputs_go_to_the_device_of_the_current_model_or_the_given_one():
    class Stop(Exception):  # noqa: N818
        pass

    def tell(x):
        raise Stop(x.device.type)

    meta = Spy().to("meta")
    for current, device, expected in (
        (meta, None, "meta"),
        (meta, "cpu", "cpu"),
        (Spy(), "meta", "meta"),
        (abs, None, "cpu"),
    ):
        with pytest.raises(Stop, match=expected):
            MeanShift().fit(tell, current, batches_of(), device=device)


def test_what_models_keep_of_a_fit_can_still_be_trained_with():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.positions = None

        def forward(self, x):
            if self.positions is None:
                self.positions = torch.arange(2.0)
            return x * self.weight * self.positions

    model = Caching()
    MeanShift().fit(model, model, batches_of())
    model(X).sum().backward()
    assert model.weight.grad is not None


def test_fit_tells_its_progress_and_leaves_the_global_random_state_alone(untouched_random_state):
    told = []
    aligner = EnergyAligner(hidden=(3,), iterations=2, noise=1.0)
    aligner.fit(Spy(1.0), Spy(2.0), batches_of(), mixup=0.5, progress=lambda *args: told.append(args[:2]))
    assert told == [(2, 2)]


# --- `Latents`: what goes into a model's head, read off without a trace.


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
    for model, head in ((net, "fc"), (net, net.fc), (nn.DataParallel(net), "fc"), (nn.DataParallel(net), "module.fc")):
        assert torch.equal(Latents(model, head)(x), net.body(x))
    for model, head in ((wrapped := nn.DataParallel(net), wrapped), (net, nn.Linear(2, 2))):
        with pytest.raises(AttachError, match="not a part"):
            Latents(model, head)


def test_rows_of_several_calls_follow_each_other():
    model = Heads(lambda head, x: (head(x), head(x.reshape(4, 5, 2) + 1)))
    assert torch.equal(Latents(model, "parts.head")(X), torch.cat([X, X + 1]))


def test_latents_may_be_keyword_arguments():
    model = Heads(lambda head, x: head(input=x + 1))
    assert torch.equal(Latents(model, "parts.head", argument="input")(X), X + 1)
    with pytest.raises(AttachError, match="input"):
        Latents(model, "parts.head")(X)


def test_a_head_that_is_never_called_is_an_error():
    with pytest.raises(AttachError, match=r"never called its module 'parts.unused'"):
        Latents(Heads(lambda head, x: head(x)), "parts.unused")(X)


def test_an_attached_aligner_is_not_seen_and_no_hook_is_left_behind(net, shift):
    x = torch.randn(9, 5)
    expected = Latents(net, "fc")(x)
    assert not net.fc._forward_pre_hooks
    with elign.attach(net, "fc", shift, gate=elign.ByPrediction(2)):
        assert torch.equal(Latents(net, "fc")(x), expected)
        with pytest.raises(RuntimeError):
            Latents(net, "fc")(x[:, :1])
        assert len(net.fc._forward_pre_hooks) == 1


def test_a_head_that_works_in_place_does_not_change_caught_latents():
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 3)))
    x = torch.tensor([[-1.0, 1.0]])
    assert torch.equal(Latents(model, "1")(x.clone()), x)


def test_gradients_flow_through_latents(net):
    x = torch.randn(9, 5, requires_grad=True)
    Latents(net, "fc")(x).sum().backward()
    assert x.grad.abs().sum() > 0


# --- Mixup in `fit`: batches are blended with themselves, by random numbers of their own.


def test_mixup_blends_each_batch_with_its_permutation_by_one_coefficient():
    """Rows of powers of two: which two rows were blended, and how, can be read off the blend."""
    x = torch.eye(8)
    recorder = Recorder().fit(lambda x: x, lambda x: x, [x, x], mixup=1.0)
    assert torch.equal(*recorder.seen)
    for blend in recorder.seen[0].split(8):
        torch.testing.assert_close(blend.sum(dim=1), torch.ones(8))
        torch.testing.assert_close(blend.sum(dim=0), torch.ones(8))
        own = blend.diagonal()
        moved = own[own < 1 - 1e-6]
        assert len(moved) > 2
        torch.testing.assert_close(moved, moved[:1].expand_as(moved))


def test_mixup_has_the_beta_distribution_of_its_alpha():
    shares = []
    for alpha in (0.1, 10.0):
        x = torch.tensor([[0.0], [1.0]])
        z = Recorder().fit(lambda x: x, lambda x: x, [x] * 2000, mixup=alpha).seen[0].reshape(-1, 2)
        shares.append(z[:, 0].double())
    assert [share.mean().item() for share in shares] == pytest.approx([0.25, 0.25], abs=0.3)
    between = [((share > 0.2) & (share < 0.8)).double().mean().item() for share in shares]
    assert between[0] < 0.1
    assert between[1] > 0.45


def test_mixup_depends_on_the_seed_alone():
    def seen(seed):
        aligner = elign.RandomShift(seed=seed)
        learned = []
        aligner._learn = lambda p, c, progress: (learned.append(p), elign.FitReport(rows=len(p), dim=2))[1]
        aligner.fit(lambda x: x, lambda x: x, batches_of(), mixup=0.5)
        return learned[0]

    assert torch.equal(seen(1), seen(1))
    assert not torch.equal(seen(1), seen(2))


@pytest.mark.parametrize("x", [torch.zeros(4, 2, dtype=torch.uint8), [torch.zeros(4, 2)], "text"])
def test_mixup_of_what_cannot_be_blended_is_an_error(x):
    with pytest.raises(LatentError, match="mixup"):
        MeanShift().fit(Spy(), Spy(), [x], inputs=lambda batch: batch, mixup=0.5)


# --- labelled pairs, and what the head alone says


def training_models():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 4)).train() for _ in range(2)]


def test_pairs_are_latents_of_both_models_with_their_classes():
    (old, new), labels = training_models(), torch.arange(20) % 4
    loader = DataLoader(TensorDataset(X, labels), batch_size=8)
    pairs = elign.Pairs.from_models(old, new, "2", loader)
    assert old.training
    assert new[1].training
    torch.testing.assert_close(pairs.z_prev, old[0](X).detach())
    torch.testing.assert_close(pairs.z_cur, new[0](X).detach())
    assert torch.equal(pairs.labels, labels)
    assert not pairs.z_cur.requires_grad
    z_prev, z_cur, found = pairs
    assert z_prev is pairs.z_prev
    assert z_cur is pairs.z_cur
    assert found is pairs.labels


def test_pairs_take_inputs_and_labels_from_where_they_are():
    old, new = training_models()
    batches = [{"where": (X[:9], torch.arange(9) % 4)}, {"where": (X[9:], torch.arange(11) % 4)}]
    pairs = elign.Pairs.from_models(
        old, new, "2", batches, inputs=lambda batch: batch["where"][0], labels=lambda batch: batch["where"][1]
    )
    expected = elign.Pairs.from_models(old, new, "2", [batch["where"] for batch in batches])
    assert all(torch.equal(one, two) for one, two in zip(pairs, expected, strict=True))


def test_the_head_alone_is_asked_in_evaluation_mode_without_what_is_attached():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4))).train()
    z = torch.randn(5, 3)
    expected = model[1][1](z).detach()
    shift = MeanShift().fit_latents(torch.zeros(2, 3), torch.ones(2, 3))
    with elign.attach(model, "1", shift):
        found = Latents(model, "1").logits(z.double())
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert model[1][0].training


def test_the_head_alone_is_asked_by_the_name_of_its_argument():
    class Head(nn.Linear):
        def forward(self, *, latents):
            return super().forward(latents)

    head = Head(3, 4)
    z, before = torch.randn(5, 3), torch.randn(5, 3)
    before.copy_(z)
    model = nn.ModuleDict({"head": head})
    torch.testing.assert_close(Latents(model, "head", argument="latents").logits(z), head(latents=z).detach())
    assert torch.equal(z, before)
    with pytest.raises(AttachError, match="argument"):
        Latents(model, "head", argument=1).logits(z)


# --- Heads, latents in what they are called with, and logits in what they return.


@pytest.fixture
def model():
    heads = nn.ModuleDict({"final": nn.Linear(2, 3)})
    return nn.ModuleDict({"heads": heads, "body": nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))})


@pytest.mark.parametrize("name", ["body", "body.0", "heads.final", ""])
def test_finds_parts_by_their_dotted_name(model, name):
    assert find_module(model, name) is model.get_submodule(name)


@pytest.mark.parametrize(
    ("name", "near"), [("head.final", "'heads.final'"), ("final", r"one of 'heads.final'\?"), ("zzzzzz", "'body.3'")]
)
def test_a_wrong_name_suggests_the_nearest(model, name, near):
    with pytest.raises(AttachError, match=rf"no module '{name}'.*{near}"):
        find_module(model, name)


@pytest.mark.parametrize("name", ["body.0", "module.body.0"])
def test_names_inside_of_a_wrapper_are_names_of_the_model_or_of_the_wrapper(model, name):
    assert find_module(nn.DataParallel(model), name) is model.body[0]


def test_a_part_may_be_called_like_a_wrapper():
    model = nn.ModuleDict({"module": nn.Linear(2, 3)})
    assert find_module(model, "module") is model["module"]
    assert find_module(nn.DataParallel(model), "module.module") is model["module"]
    # Where the two disagree, a name is that of the model that was given.
    assert find_module(nn.DataParallel(model), "module") is model


def test_a_model_without_parts_says_so():
    with pytest.raises(AttachError, match="no parts at all"):
        find_module(nn.Linear(2, 3), "fc")


def test_an_argument_that_is_no_tensor_is_an_error():
    with pytest.raises(AttachError, match="is a list, not a tensor"):
        latent_of(([1],), {}, 0)


# --- Logits in what heads return.


LOGITS = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    "output", [None, "x", ("x", LOGITS), {"logits": 3}, {"a": LOGITS, "b": LOGITS}, {}, ()], ids=str
)
def test_logits_that_cannot_be_found_are_an_error(output):
    with pytest.raises(OptionError, match="logits="):
        logits_of(output)


def test_a_mapping_that_cannot_be_changed_becomes_a_plain_one():
    given = MappingProxyType({"extra": 1, "logits": torch.zeros(1, 2)})
    logits = torch.ones(1, 2)
    assert with_logits(given, logits) == {"extra": 1, "logits": logits}
