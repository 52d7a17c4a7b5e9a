"""Classifiers in the place of a head, whatever that returns; and latents that are aligned before they are scored."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.aligning import CLASSIFIERS
from torch import Tensor, nn

import elign
from elign import (
    Aligned,
    AttachError,
    ClassStatistics,
    Gaussian,
    HeadLogits,
    LatentClassifier,
    LatentError,
    MeanShift,
    NearestMean,
    NotFittedError,
    OptionError,
    Voting,
    WeightAligned,
)
from elign.classifiers.base import RefittedClassifier
from elign.utils.extraction import logits_of

DIM, CLASSES = 5, 4


def latents(rows=60, dtype=torch.float32):
    """Latents of four classes that overlap and spread more along the first coordinate; and their classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % CLASSES
    centers = torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)
    spread = torch.linspace(2, 0.3, DIM, dtype=torch.float64)
    noise = torch.randn(rows, DIM, generator=generator, dtype=torch.float64)
    return (centers[labels] + spread * noise).to(dtype), labels


def head_for(z):
    generator = torch.Generator().manual_seed(1)
    head = nn.utils.skip_init(nn.Linear, z.shape[1], CLASSES, dtype=z.dtype)  # draws no random numbers
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def made(name, z, labels):
    """A fitted classifier of any kind."""
    if name in CLASSIFIERS:
        return CLASSIFIERS[name]().fit(z=z, labels=labels)
    head, shift = head_for(z), MeanShift().fit_latents(z + 1, z)
    means = NearestMean().fit(z=z, labels=labels)
    others = {
        "head": HeadLogits,
        "weights": lambda: WeightAligned().fit(head=head, old_classes=2),
        "bic": lambda: elign.BiC().fit(z, labels, head=head, old_classes=2),
        "il2m": lambda: elign.IL2M().fit(z, labels, head=head, old_classes=2, birth={0: (0.9, 0.9), 1: (0.8, 0.9)}),
        "aligned": lambda: Aligned(shift, NearestMean().fit(z=shift.align(z), labels=labels)),
        "voting": lambda: Voting(
            [HeadLogits(), means, Aligned(shift, means), Aligned(shift, HeadLogits())],
            task_boundaries=[1, 2],
            standard_errors=math.inf,
        ).fit(z=z, labels=labels, head=head),
    }
    return others[name]()


NAMES = [*CLASSIFIERS, "head", "weights", "bic", "il2m", "aligned", "voting"]


@pytest.fixture(params=CLASSIFIERS)
def make(request):
    """Makes a classifier that is fitted on latents of classes."""
    return CLASSIFIERS[request.param]


def test_every_classifier_of_the_package_is_in_this_battery():
    public = {thing for thing in vars(elign).values() if isinstance(thing, type)}
    public = {thing for thing in public if issubclass(thing, LatentClassifier)}
    assert public - {type(made(name, *latents())) for name in NAMES} == {LatentClassifier, elign.Repair}


# --- scores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_scores_have_the_shape_and_the_type_of_the_latents(name, dtype):
    z, labels = latents()
    classifier = made(name, z, labels)
    logits = head_for(z)(z).detach()
    asked, said = z.to(dtype), logits.to(dtype)
    scores = classifier(asked, logits=said)
    assert scores.dtype == dtype
    # What is rounded are the scores, not what they are computed with.
    expected = classifier(asked.float(), logits=said.float())
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    assert (scores.double() - expected.double()).abs().max() <= tolerance * expected.abs().max()
    for shape in ((6, 10), (3, 2, 10), (60,)):
        folded = classifier(asked.reshape(*shape, DIM), logits=said.reshape(*shape, CLASSES))
        assert folded.shape == (*shape, CLASSES)
        # Sums of other shapes may be rounded otherwise.
        apart = (folded.reshape(60, CLASSES).double() - scores.double()).abs().max()
        assert apart <= tolerance * expected.abs().max()
    assert classifier(asked[:0], logits=said[:0]).shape == (0, CLASSES)


@pytest.mark.parametrize("name", NAMES)
def test_modes_of_the_caller_do_not_change_scores_and_nothing_is_drawn_or_changed(name, untouched_random_state):
    z, labels = latents()
    classifier, logits = made(name, z, labels), z[:, :CLASSES].clone()
    expected, before = classifier(z, logits=logits), (z.clone(), logits.clone())
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            assert torch.equal(classifier(z, logits=logits), expected)
    assert torch.equal(classifier.train()(z, logits=logits), expected)
    assert torch.equal(classifier.scores(z, logits), expected)
    assert torch.equal(z, before[0])
    assert torch.equal(logits, before[1])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_latents_or_logits_and_are_numbers(name):
    z, labels = latents()
    classifier = made(name, z, labels)
    asked, said = torch.cat([z, torch.zeros(1, DIM)]).requires_grad_(), torch.randn(61, CLASSES).requires_grad_()
    classifier(asked, logits=said).square().sum().backward()
    found = [t.grad for t in (asked, said) if t.grad is not None]
    assert found
    assert all(grad.isfinite().all() for grad in found)
    assert all(grad[:60].any() for grad in found)
    assert all(value.grad_fn is None for value in classifier.state_dict(keep_vars=True).values())


@pytest.mark.parametrize("name", NAMES)
def test_latents_that_cannot_be_scored_are_refused(name):
    z, labels = latents()
    classifier, logits = made(name, z, labels), torch.zeros(2, CLASSES)
    if classifier.takes is not None:
        with pytest.raises(LatentError, match="dimension 5, got shape"):
            classifier(torch.zeros(2, 3), logits=logits)
    for bad in (torch.full((2, DIM), torch.nan), torch.zeros(2, DIM, dtype=torch.int64), np.zeros((2, DIM))):
        with pytest.raises(LatentError):
            classifier(bad, logits=logits)
    if classifier.needs_logits:
        with pytest.raises(LatentError, match="logits"):
            classifier(torch.zeros(2, DIM))
    else:
        assert torch.equal(classifier(z), classifier(z, logits=z[:, :CLASSES]))


# --- fits ------------------------------------------------------------------------------------------------


def test_a_fit_returns_the_classifier_and_leaves_latents_and_random_numbers_alone(make, untouched_random_state):
    z, labels = latents()
    before = z.clone(), labels.clone()
    classifier = make()
    assert not classifier.fitted
    with pytest.raises(NotFittedError, match="fit"):
        classifier(z)
    assert classifier.fit(z=z, labels=labels) is classifier
    assert classifier.fitted
    assert classifier.dim == classifier.takes == DIM
    assert torch.equal(z, before[0])
    assert torch.equal(labels, before[1])
    again = make().fit(z=z.clone().requires_grad_() * 1, labels=labels)
    for key, value in again.state_dict(keep_vars=True).items():
        assert value.grad_fn is None
        assert torch.equal(value, classifier.state_dict()[key])


def test_labels_that_were_not_there_and_outputs_that_no_class_has_are_never_chosen(make):
    z, labels = latents()
    few = make().fit(z=z, labels=labels)
    gaps, wide = make().fit(z=z, labels=2 * labels), make().fit(z=z, labels=labels, classes=6)
    assert gaps(z).shape == (60, 7)
    assert gaps(z)[:, 1::2].isneginf().all()
    torch.testing.assert_close(gaps(z)[:, ::2], few(z))
    assert wide(z).shape == (60, 6)
    assert wide(z)[:, 4:].isneginf().all()
    torch.testing.assert_close(wide(z)[:, :4], few(z))
    with pytest.raises(OptionError, match="classes"):
        make().fit(z=z, labels=labels, classes=7.5)


def test_statistics_and_latents_give_classes_together_and_others_are_never_chosen(make, tmp_path):
    z, labels = latents()
    low, high = labels == 1, labels == 3
    found = make().fit(ClassStatistics().update(z[low], labels[low]), z[high], labels[high], classes=6)
    scores = found(z)
    assert scores.isfinite().all(dim=0).tolist() == [False, True, False, True, False, False]
    assert scores[:, [0, 2, 4, 5]].isneginf().all()
    assert (scores.argmax(dim=1) == labels)[low | high].float().mean() > 0.6
    assert (found.counts > 0).tolist() == [False, True, False, True, False, False]
    loaded = type(found).load(found.save(tmp_path / "classifier.safetensors"))
    assert torch.equal(loaded(z), scores)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_may_be_of_a_small_type(make, dtype):
    z, labels = latents()
    expected, found = make().fit(z=z, labels=labels), make().fit(z=z, labels=labels.to(dtype))
    assert torch.equal(found(z), expected(z))
    left_out = found.leave_one_out_scores(z, labels.to(dtype))
    assert torch.equal(left_out, expected.leave_one_out_scores(z, labels))


def test_the_default_device_and_the_mode_of_the_caller_do_not_change_a_fit(make):
    z, labels = latents()
    expected = make().fit(z=z, labels=labels)
    for mode in (torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.no_grad()):
        with mode:
            found = make().fit(z=z.clone(), labels=labels)
            scores, left_out = found(z), found.leave_one_out_scores(z, labels)
        assert torch.equal(scores, expected(z))
        assert torch.equal(left_out, expected.leave_one_out_scores(z, labels))
        assert not any(value.is_inference() for value in found.state_dict().values())
        found.load_state_dict(expected.state_dict())
        found.fit(z=z, labels=labels)


def test_a_fit_on_half_precision_is_one_on_the_same_numbers_and_double_precision_stays(make):
    z, labels = latents()
    half = make().fit(z=z.half(), labels=labels)
    assert torch.equal(half(z), make().fit(z=z.half().float(), labels=labels)(z))
    double = make().fit(z=z.double(), labels=labels)
    assert double(z.double()).dtype == torch.float64
    assert {t.dtype for t in double.state_dict().values() if t.is_floating_point()} == {torch.float64}
    # In double precision nothing is rounded to single precision on the way.
    assert (double(z.double()) - make().fit(z=z, labels=labels)(z).double()).abs().max() < 1e-3


def test_what_cannot_be_fitted_on_is_refused(make):
    z, labels = latents()
    for bad in (z[:0], z * torch.nan, z.long(), z[0], z.numpy()):
        with pytest.raises(LatentError):
            make().fit(z=bad, labels=labels[: len(bad)])
    narrow = ClassStatistics().update(z[:, :3], labels)
    for options in ({}, {"z": z}, {"labels": labels}, {"statistics": narrow, "z": z, "labels": labels}):
        with pytest.raises(LatentError):
            make().fit(**options)
    with pytest.raises(NotFittedError):
        make().fit(ClassStatistics())
    with pytest.raises(OptionError, match="ClassStatistics"):
        make().fit(z)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Gaussian, {"shared": 1.5}),
        (Gaussian, {"shared": "none"}),
        (Gaussian, {"shrinkage": -0.1}),
        (elign.LinearHead, {"steps": 0}),
        (elign.LinearHead, {"weight_decay": 0.0}),
        (elign.LinearHead, {"smoothing": 1.1}),
        (elign.LinearHead, {"samples_per_class": 0}),
        (elign.LinearHead, {"seed": -1}),
        (elign.RidgeHead, {"penalty": 0.0}),
        (elign.RandomFeatures, {"width": 10**9}),
        (elign.RandomFeatures, {"penalty": "best"}),
        (elign.FeCAM, {"power": 0.0}),
        (elign.FeCAM, {"shrink_rest": -1.0}),
    ],
)
def test_options_out_of_range_are_named(kind, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        kind(**options)


@pytest.mark.parametrize("kind", [Gaussian, elign.LinearHead, elign.RidgeHead, elign.RandomFeatures, elign.FeCAM])
def test_means_alone_are_refused_where_covariances_are_needed(kind):
    with pytest.raises(LatentError):
        kind().fit(ClassStatistics(covariance="none").update(*latents()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_the_largest_numbers_never_give_nan(name, dtype):
    z, labels = latents(dtype=dtype)
    most = torch.finfo(dtype).max
    signs = most * torch.where(torch.arange(60 * DIM).reshape(60, DIM) % 3 == 0, -1.0, 1.0).to(dtype)
    classifier, logits = made(name, z, labels), z[:, :CLASSES]
    for far in (signs, torch.full_like(z, most), z / z.abs().max() * most, z * 1e20):
        assert not classifier(far, logits=logits).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fit_on_the_largest_numbers_gives_numbers_or_is_refused(make, dtype, monkeypatch):
    z, labels = latents(dtype=dtype)
    monkeypatch.setattr("elign.classifiers.linear_head._EXACT_UP_TO", 0)  # as for many latents
    for factor in (1e-30, 1e10, 1e18, 1e25, float(torch.finfo(dtype).max)):
        large = z / z.abs().max() * factor
        classifier = make()
        try:
            classifier.fit(z=large, labels=labels)
        except LatentError:
            assert not classifier.fitted
            continue
        for scores in (classifier(large), classifier(z), classifier.leave_one_out_scores(large, labels)):
            assert not scores.isnan().any()


# --- leaving one out -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_leave_one_out_scores_are_scores_of_all_classes(name):
    z, labels = latents()
    classifier, logits = made(name, z, labels), z[:, :CLASSES]
    for dtype in (torch.float16, torch.float32, torch.float64):
        found = classifier.leave_one_out_scores(z.to(dtype), labels, logits=logits.to(dtype))
        assert found.shape == (60, CLASSES)
        assert found.dtype == dtype
        assert found.isfinite().all()
        if isinstance(classifier, RefittedClassifier):
            continue  # it is fitted again on what is asked for
        # Whichever of the rows it was fitted on are asked for.
        some = classifier.leave_one_out_scores(z[3:9].to(dtype), labels[3:9], logits=logits[3:9].to(dtype))
        torch.testing.assert_close(some, found[3:9])


@pytest.mark.parametrize("name", ["nearest mean", "directions", "linear", "quadratic"])
def test_leaving_out_lowers_the_score_of_the_own_class_which_an_only_latent_loses(name):
    z, labels = latents()
    classifier = CLASSIFIERS[name]().fit(z=z, labels=labels)
    # The margin of a latent's own class over the others: scores may have terms that all classes share.
    own = torch.nn.functional.one_hot(labels).bool()

    def margin(scores):
        return scores[own] - scores.masked_fill(own, -torch.inf).amax(dim=1)

    gains = margin(classifier(z)) - margin(classifier.leave_one_out_scores(z, labels))
    assert (gains > 0).float().mean() > 0.9
    labels[0] = 4
    found = CLASSIFIERS[name]().fit(z=z, labels=labels).leave_one_out_scores(z, labels)
    assert found[0, 4].isneginf()
    assert found.isneginf().sum() == 1


def test_left_out_latents_of_random_classes_are_classified_by_chance(make):
    generator = torch.Generator().manual_seed(0)
    z, labels = torch.randn(80, 20, generator=generator), torch.randint(CLASSES, (80,), generator=generator)
    classifier = make().fit(z=z, labels=labels)
    assert (classifier(z).argmax(1) == labels).float().mean() > 0.5
    assert (classifier.leave_one_out_scores(z, labels).argmax(1) == labels).float().mean() < 0.4


def test_one_latent_of_each_class_or_equal_ones_leave_the_nearest_mean():
    z, _ = latents(dtype=torch.float64)
    labels = torch.arange(CLASSES)
    for options in ({"normalize": True}, {"shared": 1.0}, {}):
        single = Gaussian(**options).fit(z=z[:4], labels=labels)
        equal = Gaussian(**options).fit(z=z[:4].repeat(3, 1), labels=labels.repeat(3))
        for classifier in (single, equal):
            points = torch.nn.functional.normalize(z, dim=1) if options.get("normalize") else z
            means = classifier.means
            assert torch.equal(classifier(z).argmax(dim=1), torch.cdist(points, means).argmin(dim=1))
        assert single.leave_one_out_scores(z[:4], labels).diagonal().isneginf().all()
        assert equal.leave_one_out_scores(z[:4].repeat(3, 1), labels.repeat(3)).isfinite().all()


def test_labelled_latents_of_other_classes_or_none_are_refused(make):
    z, labels = latents()
    classifier = make().fit(z=z, labels=labels)
    if type(classifier).leave_one_out_scores is LatentClassifier.leave_one_out_scores:
        pytest.skip("it scores training latents like any others")
    with pytest.raises(LatentError, match="label 4"):
        classifier.leave_one_out_scores(z, labels + 1)
    with pytest.raises(LatentError, match="empty"):
        classifier.leave_one_out_scores(z[:0], labels[:0])
    with pytest.raises(LatentError):
        classifier.leave_one_out_scores(z, labels[:-1])


# --- state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_one_file_holds_a_classifier(name, dtype, tmp_path):
    z, labels = latents(dtype=dtype)
    classifier, logits = made(name, z, labels), z[:, :CLASSES]
    path = classifier.save(tmp_path / "classifier.safetensors")
    for loaded in (LatentClassifier.load(path), type(classifier).load(path), copy.deepcopy(classifier)):
        assert type(loaded) is type(classifier)
        assert loaded.config() == classifier.config()
        assert torch.equal(loaded(z, logits=logits), classifier(z, logits=logits))
        one, two = (c.leave_one_out_scores(z, labels, logits=logits) for c in (loaded, classifier))
        assert torch.equal(one, two)


def test_a_state_loads_into_another_one_fresh_or_fitted_on_something_else(make):
    z, labels = latents()
    classifier = make().fit(z=z, labels=labels)
    other = make().fit(z=torch.randn(40, 9), labels=torch.arange(40) % 8)
    for target in (make(), other, make().fit(z=z + 1, labels=labels)):
        target.load_state_dict(classifier.state_dict())
        assert torch.equal(target(z), classifier(z))
        found = target.leave_one_out_scores(z, labels)
        assert torch.equal(found, classifier.leave_one_out_scores(z, labels))
    # So does a fit on latents of another dimension and other classes.
    again = make().fit(z=torch.randn(40, 9), labels=torch.arange(40) % 8).fit(z=z, labels=labels)
    assert torch.equal(again(z), classifier(z))
    with pytest.raises(RuntimeError, match="Unexpected"):
        make().load_state_dict({**classifier.state_dict(), "foreign": torch.zeros(1)})


def test_the_base_class_says_what_a_subclass_must_write():
    class Bare(LatentClassifier):
        learns = False

    with pytest.raises(NotImplementedError):
        Bare()(torch.zeros(1, 2))
    with pytest.raises(NotImplementedError):
        Bare().fit(z=torch.zeros(1, 2), labels=torch.tensor([0]))
    with pytest.raises(NotFittedError):
        LatentClassifier()(torch.zeros(1, 2))


# --- attached --------------------------------------------------------------------------------------------


class Sum(LatentClassifier):
    """The head's logits plus the first coordinate of the latent."""

    learns = False
    needs_logits = True

    def scores(self, z, logits=None):
        return logits + z[..., :1]


def test_a_nearest_mean_takes_the_place_of_a_head(net, x):
    z = net.body(x).detach()
    means = NearestMean(normalize=False).fit(z=z, labels=torch.arange(9) % 4)
    before = net(x)
    with elign.attach(net, "fc", means) as attachment:
        assert attachment.what is means
        assert attachment.role == "classify"
        assert torch.equal(net(x), means(z))
        net.fc.train()
        assert torch.equal(net(x), before)
        net.fc.eval()
    assert torch.equal(net(x), before)


def test_a_classifier_gets_aligned_latents_and_the_logits_of_these(net, x, shift):
    with elign.attach(net, "fc", shift), elign.attach(net, "fc", Sum()):
        moved = shift.align(net.body(x))
        torch.testing.assert_close(net(x), net.fc.forward(moved) + moved[:, :1])
        assert elign.detach(net) == 2
    assert not net.fc._forward_hooks
    assert not net.fc._forward_pre_hooks


class Result(NamedTuple):
    logits: Tensor
    extra: str


class Wrapped(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.linear = nn.Linear(6, 4)

    def forward(self, z):
        return self.form(self.linear(z))


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: (y, "extra"),
        lambda y: [y, "extra"],
        lambda y: Result(y, "extra"),
        lambda y: {"logits": y, "extra": 1},
        lambda y: {"only": y},
        lambda y: OrderedDict(logits=y, extra=1),
    ],
)
def test_what_a_head_returns_keeps_its_form(form):
    model = nn.Sequential(nn.Linear(5, 6), Wrapped(form)).eval()
    before = model(torch.ones(2, 5))
    with elign.attach(model, "1", Sum()):
        after = model(torch.ones(2, 5))
    assert type(after) is type(before)
    plain, changed = (logits_of(output) for output in (before, after))
    torch.testing.assert_close(changed, plain + model[0](torch.ones(2, 5))[:, :1])
    if not isinstance(before, torch.Tensor):
        assert len(after) == len(before)


def test_a_classifier_that_is_not_fitted_or_of_another_dimension_is_not_attached(net):
    with pytest.raises(NotFittedError):
        elign.attach(net, "fc", NearestMean())
    small = NearestMean().fit(z=torch.ones(1, 3), labels=torch.tensor([0]))
    for classifier in (small, Aligned(MeanShift().fit_latents(torch.ones(1, 3), torch.ones(1, 3)), small)):
        with pytest.raises(AttachError, match="dimension 6, the classifier's is 3"):
            elign.attach(net, "fc", classifier)


def test_aligned_classifies_what_the_aligner_makes_of_latents(pairs):
    z, _ = pairs
    labels = torch.arange(len(z)) % 4
    aligner = MeanShift().fit_latents(z + 3, z)
    plain = NearestMean(normalize=False).fit(z=z + 3, labels=labels)
    made = Aligned(aligner, plain)
    torch.testing.assert_close(made(z), plain(z + 3), atol=1e-5, rtol=1e-5)
    means = NearestMean().fit(z=z + 3, labels=labels)
    expected = means.leave_one_out_scores(z + 3, labels)
    torch.testing.assert_close(Aligned(aligner, means).leave_one_out_scores(z, labels), expected, atol=1e-5, rtol=1e-5)
    assert not Aligned(MeanShift(), NearestMean()).fitted
    with pytest.raises(NotFittedError, match="of its aligner"):
        Aligned(MeanShift(), NearestMean()).require_fitted()
