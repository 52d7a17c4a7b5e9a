"""`fit`, which reads latents off two models once per input: modes, batches, and what is no latent."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch
from tests.spies import Recorder, Spy, X, batches_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elign
from elign import EnergyAligner, LatentError, MeanShift, OptionError

Batch = namedtuple("Batch", "image label")


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


def test_batch_normalisation_is_not_touched():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    MeanShift().fit(model, model, batches_of())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (x, torch.zeros(len(x))),
        lambda x: [x, "label"],
        lambda x: {"image": x, "label": 3},
        lambda x: Batch(x, 0),
    ],
    ids=["tensor", "tuple", "list", "mapping", "named tuple"],
)
def test_the_input_is_a_batch_or_its_first_entry(wrap):
    recorder = Recorder().fit(Spy(), Spy(), [wrap(x) for x in batches_of()])
    assert torch.equal(recorder.seen[0], X)


def test_inputs_takes_the_input_out_of_a_batch():
    recorder = Recorder().fit(Spy(), Spy(), [{"label": 0, "image": X}], inputs=lambda batch: batch["image"])
    assert torch.equal(recorder.seen[0], X)


@pytest.mark.parametrize(
    "inputs",
    [
        lambda x: (x, x),
        lambda x: [x, x],
        lambda x: {"a": x, "b": x},
        lambda x: Batch(x, x),
    ],
    ids=["tuple", "list", "mapping", "named tuple"],
)
def test_models_may_take_several_inputs_in_any_container(inputs):
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(()))
    seen = []
    model.forward = lambda x: (seen.append(type(x)), X)[1]
    MeanShift().fit(model, model, batches_of(20), inputs=inputs)
    assert issubclass(seen[0], type(inputs(X)))


def test_a_data_loader_will_do_and_labels_are_ignored():
    loader = DataLoader(TensorDataset(X, torch.full((20,), math.nan)), batch_size=7)
    assert torch.equal(Recorder().fit(Spy(), Spy(), loader).seen[1], X)


def test_models_may_be_plain_functions():
    recorder = Recorder().fit(lambda x: x - 1, lambda x: x + 1, batches_of())
    assert torch.equal(recorder.seen[1] - recorder.seen[0], torch.full((20, 2), 2.0))


def test_latents_with_more_dimensions_give_a_row_each():
    assert Recorder().fit(lambda x: x, lambda x: x, [X.reshape(2, 10, 2)]).report.rows == 20


def test_feature_maps_are_no_latents():
    with pytest.raises(LatentError, match=r"current returns feature maps \(20, 2, 3, 3\)"):
        MeanShift().fit(lambda x: x, lambda x: x[..., None, None].expand(-1, -1, 3, 3), [X])


@pytest.mark.parametrize("classes", [["cat", "dog"], None, [1, None]])
def test_classes_that_are_no_numbers_are_named(classes):
    with pytest.raises(LatentError, match="classes must be whole numbers"):
        elign.Prototypes().add_data(nn.Identity(), [(torch.zeros(2, 3), classes)])


@pytest.mark.parametrize("count", [0, 4])
def test_another_number_of_classes_than_latents_is_named(count):
    with pytest.raises(LatentError, match=rf"\[8\] latents but {count} classes"):
        elign.Prototypes().add_data(nn.Identity(), [(torch.zeros(8, 3), torch.zeros(count, dtype=torch.long))])


def test_a_generator_is_read_once_and_a_second_pass_says_so():
    assert MeanShift().fit(Spy(), Spy(), (x for x in batches_of())).fitted
    with pytest.raises(LatentError, match=r"pass 2 of 2.*generator can be read only once"):
        MeanShift().fit(Spy(), Spy(), (x for x in batches_of()), passes=2)


def test_no_data_is_an_error():
    with pytest.raises(LatentError, match="no batch in pass 1"):
        MeanShift().fit(Spy(), Spy(), [])
    with pytest.raises(LatentError, match="empty"):
        MeanShift().fit(Spy(), Spy(), [X[:0]])


@pytest.mark.parametrize("batch", [(), [], {}])
def test_a_batch_without_an_input_is_an_error(batch):
    with pytest.raises(LatentError, match="empty"):
        MeanShift().fit(Spy(), Spy(), [batch])


@pytest.mark.parametrize("z", [torch.zeros(3), "latents", None, [torch.zeros(2, 2)]], ids=str)
def test_what_is_no_latent_is_an_error_that_names_the_model(z):
    with pytest.raises(LatentError, match="previous must return latents"):
        MeanShift().fit(lambda x: z, Spy(), batches_of())
    with pytest.raises(LatentError, match="current must return latents"):
        MeanShift().fit(Spy(), lambda x: z, batches_of())


def test_models_that_disagree_on_rows_or_dimension_are_an_error():
    for other in (lambda x: x[1:], lambda x: x[:, :1]):
        with pytest.raises(LatentError):
            MeanShift().fit(Spy(), other, batches_of())


def test_latents_of_different_shape_are_an_error_at_the_first_batch():
    batches = iter([torch.randn(4, 3), torch.randn(4, 3)])
    with pytest.raises(elign.LatentError, match="for the same batch"):
        elign.MeanShift().fit(nn.Linear(3, 5), nn.Linear(3, 6), batches)
    assert len(list(batches)) == 1


@pytest.mark.parametrize("passes", [0, -1, 1.5, None])
def test_passes_out_of_range_are_an_error(passes):
    with pytest.raises(OptionError, match="passes"):
        MeanShift().fit(Spy(), Spy(), batches_of(), passes=passes)


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


def test_fit_leaves_the_global_random_state_alone(untouched_random_state):
    EnergyAligner(hidden=(3,), iterations=2, noise=1.0).fit(Spy(1.0), Spy(2.0), batches_of(), mixup=0.5)


def test_progress_reaches_the_learning():
    told = []
    EnergyAligner(hidden=(3,), iterations=50, steps=1).fit(
        Spy(), Spy(2.0), batches_of(), progress=lambda *args: told.append(args)
    )
    assert told[-1][:2] == (50, 50)
