"""Several threads at once: fits and inference on one model give what each gives alone, bit for bit."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.conftest import Net

import elign

CLASSES, THREADS = 6, 16
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def data(seed, classes, rows=48):
    """Batches of inputs, which differ between seeds."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes).repeat(rows // len(classes))
    x = torch.randn(rows, 5, generator=generator) + 2 * labels.unsqueeze(1)
    return [(x[i : i + 8], labels[i : i + 8]) for i in range(0, rows, 8)]


@pytest.fixture
def models():
    """The previous and the current model, in training mode: each fit must put them into evaluation mode and back."""
    torch.manual_seed(0)
    previous, current = Net(classes=CLASSES), Net(classes=CLASSES)
    for part in (previous.body[1], current.body[1]):
        part.running_mean.normal_(generator=torch.Generator().manual_seed(2))
    current.body[0].eval()  # a frozen part
    return previous.train(), current


def modes(*parts):
    return [module.training for part in parts for module in part.modules()]


def together(jobs):
    """Runs all jobs at once, each in its own thread, and returns their results in order."""
    start = threading.Barrier(len(jobs))

    def run(job):
        start.wait(timeout=60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, job) for job in jobs]]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def state(fitted):
    return list(fitted.state_dict().values())


def fit_aligner(models, seed):
    latents = [elign.Latents(model, "fc") for model in models]
    makers = (elign.Ridge, elign.MeanShift, elign.LocalShift, lambda: elign.MLPMap(width=2, epochs=2, seed=seed))
    aligner = makers[seed % 4]()
    return state(aligner.fit(*latents, data(seed, [3, 4, 5]), passes=2))


def fit_adc(models, seed):
    statistics = elign.ClassStatistics.from_data(models[0], "fc", data(100 + seed, [0, 1, 2]))
    latents = [elign.Latents(model, "fc") for model in models]
    return state(elign.ADC(images=10, step=1.0).fit(*latents, data(seed, [3, 4, 5]), statistics=statistics))


def fit_energy(models, seed):
    latents = [elign.Latents(model, "fc") for model in models]
    aligner = elign.EnergyAligner(hidden=(4,), iterations=20, steps=3, seed=seed)
    return state(aligner.fit(*latents, data(seed, [3, 4, 5])))


def fit_repair(models, seed):
    statistics = elign.ClassStatistics.from_data(models[0], "fc", data(100 + seed, [0, 1, 2]))
    repair = elign.Repair("fc", force=True)
    repair.fit(*models, data(seed, [3, 4, 5]), statistics=statistics, exemplars=data(seed, [0, 1, 2], rows=24))
    return state(repair) + state(repair.statistics)


@pytest.mark.parametrize("fit", [fit_aligner, fit_adc, fit_energy, fit_repair])
def test_sixteen_fits_at_once_are_sixteen_fits(models, fit):
    before = modes(*models), copy.deepcopy([model.state_dict() for model in models])
    alone = [fit(models, seed) for seed in range(THREADS)]
    at_once = together([lambda seed=seed: fit(models, seed) for seed in range(THREADS)])
    for seed in range(THREADS):
        assert same(alone[seed], at_once[seed]), seed
    # Data differ, so results must: otherwise equality would prove nothing.
    assert not same(alone[0], alone[3])
    assert modes(*models) == before[0]
    for model, held in zip(models, before[1], strict=True):
        assert same(state(model), list(held.values()))
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_fit_beside_a_serving_thread(models):
    previous, current = models
    current.eval()
    inputs = [torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(60)]
    aligner = elign.Ridge().fit(*(elign.Latents(model, "fc") for model in models), data(0, [3, 4, 5]))
    elign.attach(current, "fc", aligner)

    def serve():
        with torch.no_grad():
            return [current(x) for x in inputs]

    served, fitted = serve(), fit_repair(models, 1)
    results = together([serve, lambda: fit_repair(models, 1), serve, lambda: fit_aligner(models, 2)])
    assert same(results[0], served)
    assert same(results[2], served)
    assert same(results[1], fitted)
    assert same(results[3], fit_aligner(models, 2))
    assert previous.training
    assert not any(modes(current))


@pytest.mark.parametrize("kind", ["aligner", "classifier", "repair", "split"])
def test_eight_threads_serve_one_model(models, kind):
    current = models[1].eval()
    z_prev, z_cur, labels = elign.Pairs.from_models(*models, "fc", data(0, [0, 1, 2, 3, 4, 5]))
    aligner = elign.EnergyAligner(hidden=(4,), iterations=20, steps=3).fit_latents(z_prev, z_cur)
    if kind == "aligner":
        elign.attach(current, "fc", aligner, gate=elign.ByPrediction(old_classes=3))
    elif kind == "split":
        elign.attach(current, "fc", aligner, outputs=elign.SplitOutputs(range(3)))
    elif kind == "classifier":
        means = elign.NearestMean().fit(z=z_cur, labels=labels)
        voting = elign.Voting([elign.HeadLogits(), elign.Aligned(aligner, means)], task_boundaries=3)
        with torch.no_grad():
            elign.attach(current, "fc", voting.fit(z=z_cur, labels=labels, head=current.fc))
    else:
        statistics = elign.ClassStatistics.from_data(models[0], "fc", data(9, [0, 1, 2]))
        elign.Repair("fc", force=True).fit(*models, data(0, [3, 4, 5]), statistics=statistics).attach(current)

    def serve(seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            return [current(torch.randn(1 + n % 5, 5, generator=generator)) for n in range(40)]

    alone = [serve(seed) for seed in range(8)]
    at_once = together([lambda seed=seed: serve(seed) for seed in range(8)])
    assert all(same(a, b) for a, b in zip(alone, at_once, strict=True))
    assert elign.detach(current) == 1


def test_attachments_come_and_go_while_others_fit(models):
    shift = elign.MeanShift().fit(*(elign.Latents(model, "fc") for model in models), data(0, [3, 4, 5]))
    wanted = fit_repair(models, 3)
    stop = threading.Event()

    def come_and_go():
        count = 0
        while not stop.is_set():
            with elign.attach(models[1], "fc", shift):
                count += 1
        return count

    def fits():
        try:
            return [fit_repair(models, 3) for _ in range(4)]
        finally:
            stop.set()

    results = together([fits, come_and_go])
    assert all(same(found, wanted) for found in results[0])
    assert results[1] > 0
    assert elign.detach(models[1]) == 0
    assert all(modes(models[0]))
