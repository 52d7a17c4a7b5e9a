"""ADC against plain loops, on networks with batch normalisation; and what it leaves alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import elign
from elign import ADC, ClassStatistics, LatentError, OptionError

CLASSES, DIM = 3, 4


class Net(nn.Module):
    """Small images to logits, with batch normalisation, dropout and a first operation in place."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        parts = [nn.ReLU(inplace=True), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.AdaptiveAvgPool2d(2)]
        self.body = nn.Sequential(*parts, nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, DIM))
        self.fc = nn.Linear(DIM, CLASSES)
        with torch.no_grad():
            self.body[2].running_mean.normal_()

    def forward(self, x):
        return self.fc(self.body(x))


@pytest.fixture
def models():
    previous, current = Net(0).double(), Net(1).double()
    current.body[1].eval()  # a frozen part
    current.fc.requires_grad_(False)
    return previous.train(), current


@pytest.fixture
def images():
    """Images whose second channel has another range than the first."""
    x = torch.rand(60, 2, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x * torch.tensor([1.0, 3.0]).reshape(1, 2, 1, 1)


def batches(x, size=17):
    return [(x[i : i + size], torch.zeros(len(x[i : i + size]))) for i in range(0, len(x), size)]


def latents(*models):
    return [elign.Latents(model, "fc") for model in models]


def plain(model, x):
    with torch.no_grad():
        return copy.deepcopy(model).eval().body(x.clone())


@pytest.fixture
def statistics(models, images):
    """Old classes that are not where the new images are."""
    generator = torch.Generator().manual_seed(5)
    z = plain(models[0], images)
    z = z + 0.02 * torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)[torch.arange(60) % CLASSES]
    return ClassStatistics().update(z, 2 * (torch.arange(60) % CLASSES))


def by_plain_loops(previous, current, x, statistics, *, count, steps, step, norm):
    """Drifts, numbers of kept images, and the pairs they are from: one class and one image at a time."""
    f, g = (copy.deepcopy(model).eval() for model in (previous, current))
    low, high = (torch.stack([reduce(x[:, c]) for c in range(2)]).reshape(2, 1, 1) for reduce in (torch.min, torch.max))
    means = statistics.means.double()
    start = [f.body(image[None].clone())[0].detach() for image in x]
    drifts, kept, found = [], [], []
    for place, mean in enumerate(means):
        order = sorted(range(len(x)), key=lambda i: float((start[i] - mean).norm()))[:count]
        near = [x[i] for i in order]
        changed = list(near)
        for _ in range(steps):
            slopes = []
            for image in changed:
                leaf = image.clone().requires_grad_()
                ((f.body(leaf[None] * 1)[0] - mean) ** 2).mean().backward()
                slopes.append(leaf.grad)
            whole = torch.stack(slopes).norm()
            changed = [
                torch.clamp(image - step * slope / (whole if norm == "batch" else slope.norm()), low, high)
                for image, slope in zip(changed, slopes, strict=True)
            ]
        with torch.no_grad():
            ends = [f.body(image[None].clone())[0] for image in changed]
            own = [i for i, z in enumerate(ends) if int((means - z).norm(dim=1).argmin()) == place]
            kept.append(len(own))
            changed = [changed[i] for i in own] or near
            z_prev, z_cur = (torch.cat([h.body(image[None].clone()) for image in changed]) for h in (f, g))
        drifts.append((z_cur - z_prev).mean(dim=0))
        found.append((z_prev, z_cur))
    return torch.stack(drifts), kept, [torch.cat(side) for side in zip(*found, strict=True)]


SETTINGS = [
    (8, 3, 1.5, "image"),
    (8, 3, 4.0, "batch"),
    (5, 1, 0.3, "image"),
    (60, 2, 9.0, "batch"),
    (4, 0, 1.0, "batch"),
]


@pytest.mark.parametrize(("count", "steps", "step", "norm"), SETTINGS)
@pytest.mark.parametrize("batch_size", [3, 100])
def test_adc_against_plain_loops(models, images, statistics, count, steps, step, norm, batch_size):
    drifts, kept, (z_prev, z_cur) = by_plain_loops(
        *models, images, statistics, count=count, steps=steps, step=step, norm=norm
    )
    aligner = ADC(images=count, steps=steps, step=step, norm=norm, batch_size=batch_size)
    aligner.fit(*latents(*models), batches(images), statistics=statistics, direction="forward")
    assert aligner.kept.tolist() == kept
    assert torch.allclose(aligner.drifts, drifts, atol=1e-9)
    assert torch.allclose(aligner.pairs.z_prev, z_prev, atol=1e-9)
    assert torch.allclose(aligner.pairs.z_cur, z_cur, atol=1e-9)
    assert aligner.report.rows == len(z_prev)
    moved = aligner.transport(statistics)
    assert torch.allclose(moved.means, statistics.means + drifts, atol=1e-9)
    assert torch.equal(moved.covariances, statistics.covariances)
    assert torch.equal(moved.counts, statistics.counts)


def test_the_settings_above_keep_all_images_some_or_none(models, images, statistics):
    kept = [by_plain_loops(*models, images, statistics, count=a, steps=b, step=c, norm=d)[1] for a, b, c, d in SETTINGS]
    numbers = {(n == 0, n == count) for each, (count, *_) in zip(kept, SETTINGS, strict=True) for n in each}
    assert numbers == {(True, False), (False, False), (False, True)}


def test_labels_of_pairs_are_those_of_the_statistics(models, images, statistics):
    aligner = ADC(images=8, steps=3, step=1.5, norm="image")
    aligner.fit(*latents(*models), batches(images), statistics=statistics)
    assert aligner.classes.tolist() == [0, 2, 4]
    counts = [count or 8 for count in aligner.kept.tolist()]
    assert aligner.pairs.labels.tolist() == [
        label for label, n in zip([0, 2, 4], counts, strict=True) for _ in range(n)
    ]
    # More pairs for other aligners.
    z_prev, z_cur = (
        torch.cat([plain(model, images), extra]) for model, extra in zip(models, aligner.pairs[:2], strict=True)
    )
    assert elign.Ridge().fit_latents(z_prev, z_cur).report.rows == 60 + sum(counts)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_latent_moves_as_the_mean_that_is_nearest_to_it(models, images, statistics, direction):
    aligner = ADC(images=8).fit(*latents(*models), batches(images), statistics=statistics, direction=direction)
    forward = ADC(images=8).fit(*latents(*models), batches(images), statistics=statistics, direction="forward")
    after = forward.transport(statistics).means
    source, target = (statistics.means, after) if direction == "forward" else (after, statistics.means)
    z = torch.randn(50, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nearest = torch.stack([(source - row).norm(dim=1).argmin() for row in z])
    assert len(set(nearest.tolist())) > 1
    assert torch.allclose(aligner.align(z), z + (target - source)[nearest], atol=1e-9)
    assert torch.allclose(aligner.align(source), target, atol=1e-9)


def test_models_are_left_as_they_were(models, images, statistics, untouched_random_state):
    before = copy.deepcopy([model.state_dict() for model in models]), images.clone()
    modes = [part.training for model in models for part in model.modules()]
    needs = [p.requires_grad for model in models for p in model.parameters()]
    models[0].fc.weight.grad = torch.ones_like(models[0].fc.weight)
    ADC(images=8).fit(*latents(*models), batches(images), statistics=statistics)
    assert [part.training for model in models for part in model.modules()] == modes
    assert [p.requires_grad for model in models for p in model.parameters()] == needs
    grads = [p.grad for model in models for p in model.parameters() if p.grad is not None]
    assert len(grads) == 1
    assert bool((grads[0] == 1).all())
    assert all(not model.fc._forward_pre_hooks for model in models)
    for model, state in zip(models, before[0], strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(images, before[1])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_caller_and_batches_do_not_change_the_result(models, images, statistics, mode):
    wanted = ADC(images=8).fit(*latents(*models), batches(images), statistics=statistics)
    with mode():
        found = ADC(images=8).fit(*latents(*models), batches(images.clone(), 60), statistics=statistics)
        assert torch.is_grad_enabled() is False
    for name, value in wanted.state_dict().items():
        assert torch.allclose(found.state_dict()[name].double(), value.double(), atol=1e-9)
    assert not any(value.is_inference() for value in found.state_dict().values())


def test_grad_mode_and_training_mode_come_back_after_an_error(models, images, statistics):
    def bad():
        yield images[:20]
        yield images[:20, :, :3]

    try:
        ADC().fit(*latents(*models), bad(), statistics=statistics)
    except LatentError as error:
        assert "one size" in str(error)  # noqa: PT017  (the modes count while the error is there)
        assert torch.is_grad_enabled()
        assert models[0].training
    else:
        pytest.fail("images of two sizes were taken")


def test_only_images_that_are_near_to_a_mean_are_held(models, images, statistics):
    from elign.aligners.adc import _Nearest

    nearest = _Nearest(statistics, 4)
    for x, _ in batches(images):
        nearest.add(x, plain(models[0], x))
        assert len(nearest._held) <= 4 * CLASSES
        assert all(image.untyped_storage().nbytes() == x[0].nbytes for image in nearest._held.values())
    distances = np.linalg.norm(plain(models[0], images).numpy()[:, None] - statistics.means.numpy()[None], axis=2)
    for place in range(CLASSES):
        assert torch.equal(nearest.images_of(place), images[np.argsort(distances[:, place], kind="stable")[:4]])


def test_images_stay_in_the_range_of_the_data_or_the_given_one(models, images, statistics):
    seen = []

    def previous(x):
        seen.append(x.detach().clone())
        return models[0].eval().body(x)

    def fit(**options):
        seen.clear()
        ADC(images=8, step=100.0).fit(previous, models[1].eval().body, [images], statistics=statistics, **options)
        changed = torch.cat(seen[1:])
        return changed.amin(dim=(0, 2, 3)), changed.amax(dim=(0, 2, 3))

    low, high = fit()
    assert torch.equal(low, images.amin(dim=(0, 2, 3)))
    assert torch.equal(high, images.amax(dim=(0, 2, 3)))
    low, high = fit(value_range=(-2.0, torch.tensor([5.0, 7.0]).reshape(2, 1, 1)))
    assert low.tolist() == [-2, -2]
    assert high.tolist() == [5, 7]


@pytest.mark.parametrize(
    "value_range", [(1.0, 0.0), (0.0, float("nan")), (0.0,), 3.0, ("a", "b"), (torch.zeros(5), torch.ones(5)), ([], [])]
)
def test_ranges_that_make_no_sense_are_refused(models, images, statistics, value_range):
    with pytest.raises(OptionError, match="value_range"):
        ADC().fit(*latents(*models), [images], statistics=statistics, value_range=value_range)


def test_images_of_half_precision_make_steps_in_single(models, images, statistics):
    previous, current = (copy.deepcopy(model).eval().to(torch.bfloat16).body for model in models)
    aligner = ADC(images=8, step=1.0).fit(previous, current, [images.bfloat16()], statistics=statistics)
    assert aligner.drifts.dtype == torch.float32
    assert aligner.pairs.z_cur.isfinite().all()


def test_what_adc_needs_is_declared_and_said(models, images, statistics):
    assert ADC.needs_images
    assert not elign.Aligner.needs_images
    assert not elign.Ridge().needs_images
    z = torch.zeros(4, DIM)
    with pytest.raises(OptionError, match="images and both models"):
        ADC().fit_latents(z, z)

    head, labels = nn.Linear(DIM, CLASSES), torch.full((4,), 2)
    with pytest.raises(OptionError, match="images and both models"):
        elign.Repair(aligner=ADC()).fit_latents(z, z + 1, labels, head=head, statistics=statistics.select([0]))

    @torch.no_grad()
    def previous(x):
        return models[0].body(x)

    for cut in (previous, lambda x: models[0].body(x.detach())):
        with pytest.raises(OptionError, match="no gradients"):
            ADC().fit(cut, models[1].body, [images], statistics=statistics)
    with pytest.raises(OptionError, match="ClassStatistics"):
        ADC().fit(*latents(*models), [images], statistics=None)
    narrow = ClassStatistics().update(torch.randn(6, 2), torch.arange(6) % 2)
    with pytest.raises(LatentError, match="dimension"):
        ADC().fit(*latents(*models), [images], statistics=narrow)
    with pytest.raises(LatentError, match="no batch"):
        ADC().fit(*latents(*models), [], statistics=statistics)
    for inputs in (images.long(), images * torch.nan, images[:0], "image", [images]):
        with pytest.raises(LatentError):
            ADC().fit(models[0].body, models[1].body, [{"image": inputs}], statistics=statistics)
    with pytest.raises(LatentError, match="one latent for each of 60 images"):
        ADC().fit(lambda x: models[0].body(x)[:5], models[1].body, [images], statistics=statistics)
    with pytest.raises(LatentError, match="current must return"):
        ADC().fit(models[0].body, lambda x: None, [images], statistics=statistics)


def test_statistics_of_some_classes_are_transported_and_others_are_refused(models, images, statistics):
    aligner = ADC(images=8).fit(*latents(*models), [images], statistics=statistics, direction="forward")
    some = statistics.select([4, 0])
    assert torch.equal(aligner.transport(some).means, aligner.transport(statistics).means[[0, 2]])
    z = torch.randn(6, DIM)
    with pytest.raises(LatentError, match="class 1"):
        aligner.transport(ClassStatistics().update(z, torch.arange(6) % 2))
    with pytest.raises(OptionError, match="forward"):
        ADC(images=8).fit(*latents(*models), [images], statistics=statistics).transport(statistics)


def test_pairs_are_not_in_files_and_progress_is_told(models, images, statistics, tmp_path):
    told = []
    aligner = ADC(images=8)
    aligner.fit(*latents(*models), [images], statistics=statistics, progress=lambda *each: told.append(each))
    assert [each[:2] for each in told] == [(1, 3), (2, 3), (3, 3)]
    first = aligner.pairs.z_prev[aligner.pairs.labels == 0]
    assert told[0][2] == pytest.approx(float((first - statistics.means[0]).square().mean()))
    loaded = elign.Aligner.load(aligner.save(tmp_path / "adc.safetensors"))
    assert loaded.pairs is None
    assert torch.equal(loaded.kept, aligner.kept)
    assert torch.equal(loaded.align(statistics.means), aligner.align(statistics.means))


@pytest.mark.parametrize(
    "options",
    [{"images": 0}, {"steps": -1}, {"step": float("nan")}, {"norm": "pixel"}, {"norm": None}, {"batch_size": 0}],
)
def test_options_out_of_range(options):
    with pytest.raises(OptionError):
        ADC(**options)
