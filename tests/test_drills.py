"""Drills: a new aligner, gate or classifier is one file with one decorator, and then works everywhere.

Each file is written into a folder outside of the package and imported from there, as a user's own file would be.
Numbers are compared with formulas that are written here again, not with the file's own results.
"""

import importlib.util
import sys
from importlib.util import find_spec

import pytest
import torch

import elign
from elign.export import export_model_onnx, export_model_torch, export_onnx, export_torch
from elign.utils import fitted

ALIGNER = '''
"""Matches the standard deviation of each dimension."""

import torch

import elign


@elign.register
class DrillScale(elign.Aligner):
    """Scales each dimension about its mean."""

    def __init__(self, *, strength=1.0):
        super().__init__()
        self.strength = strength

    def _build(self, dim):
        super()._build(dim)
        for name in ("source", "target", "factor"):
            self.register_buffer(name, torch.zeros(dim))

    def _learn(self, z_prev, z_cur, progress):
        self.source, self.target = z_cur.mean(dim=0), z_prev.mean(dim=0)
        self.factor = self.strength * z_prev.std(dim=0) / z_cur.std(dim=0)
        return elign.FitReport(rows=len(z_cur), dim=z_cur.shape[1])

    def _move(self, rows, generator):
        return (rows - self.source.to(rows)) * self.factor.to(rows) + self.target.to(rows)
'''

GATE = '''
"""Takes latents that are far from the mean of the new classes."""

import torch

import elign


@elign.register
class DrillFar(elign.Gate):
    """Aligns latents beyond a quantile of the new latents' distances."""

    def __init__(self, *, quantile=0.5):
        super().__init__()
        self.quantile = quantile

    def _build(self, dim):
        super()._build(dim)
        self.register_buffer("center", torch.zeros(dim))
        self.register_buffer("radius", torch.zeros(()))

    def fit(self, z_new):
        center = z_new.mean(dim=0)
        self._set(z_new.shape[1], center=center, radius=(z_new - center).norm(dim=1).quantile(self.quantile))
        return self

    def weights(self, z, head=None, aligner=None):
        return (z - self.center.to(z)).norm(dim=-1) > self.radius.to(z)
'''

CLASSIFIER = '''
"""The nearest mean by the city-block distance, with a share of the head's logits."""

import torch

import elign


@elign.register
class DrillCityBlock(elign.LatentClassifier):
    """Scores classes by minus the sum of absolute differences, plus a share of the logits."""

    needs_logits = True
    rows_of = "means"

    def __init__(self, *, share=0.5):
        super().__init__()
        self.share = share

    def _build(self, dim):
        super()._build(dim)
        self.register_buffer("means", torch.zeros(self.rows, dim))

    def fit(self, statistics=None, z=None, labels=None, *, head=None, classes=0):
        self.rows = statistics.rows
        self._set(statistics.dim, means=statistics.means)
        return self

    def scores(self, z, logits=None):
        distances = (z.unsqueeze(-2) - self.means.to(z)).abs().sum(dim=-1)
        return self.share * logits - distances
'''


@pytest.fixture
def own_class(tmp_path, monkeypatch):
    """Writes one file, imports it and returns its class; afterwards nothing of it is left."""
    monkeypatch.setattr(fitted, "_registry", dict(fitted._registry))

    def write(source, name):
        path = tmp_path / f"{name.lower()}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        assert source.count("@") == 1
        assert elign.registered(name) is getattr(module, name)
        return getattr(module, name)

    return write


@pytest.fixture
def drift():
    """Latents of 120 inputs under the previous and the current model."""
    z_prev = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    return z_prev, z_prev * torch.linspace(0.5, 3, 6) + 2


@pytest.fixture
def statistics(drift):
    return elign.ClassStatistics().update(drift[1], torch.arange(120) % 4)


def same_after_saving(thing, kind, path):
    """Loads what was saved, through the base class and the class itself."""
    thing.save(path)
    loaded = kind.load(path)
    assert type(loaded) is type(thing)
    assert loaded.config() == thing.config()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in thing.state_dict().items())
    other = next(each for each in (elign.Aligner, elign.Gate, elign.LatentClassifier) if each is not kind)
    with pytest.raises(elign.FileFormatError, match=type(thing).__name__):
        other.load(path)
    return loaded


def run_torch(path, x):
    return torch.export.load(path).module()(x)


def run_onnx(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


ALONE, WHOLE = (export_torch, export_onnx), (export_model_torch, export_model_onnx)


def files_of(folder, exports, what, *args, **options):
    """Yields each file that can be written here, with what runs it."""
    yield exports[0](what, folder / "it.pt2", *args, **options), run_torch
    if all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        yield exports[1](what, folder / "it.onnx", *args, **options), run_onnx


def scaled(z, z_prev, z_cur, strength):
    """What `DrillScale` should do, in float64."""
    z, z_prev, z_cur = z.double(), z_prev.double(), z_cur.double()
    return (z - z_cur.mean(0)) * (strength * z_prev.std(0) / z_cur.std(0)) + z_prev.mean(0)


def test_a_new_aligner_is_attached_saved_loaded_and_exported(own_class, drift, net, x, tmp_path):
    aligner = own_class(ALIGNER, "DrillScale")(strength=0.5).fit_latents(*drift)
    assert aligner.report.drift_before > aligner.report.drift_after > 0

    loaded = same_after_saving(aligner, elign.Aligner, tmp_path / "aligner.safetensors")
    with torch.no_grad():
        plain = net(x)
        wanted = net.fc(scaled(net.body(x), *drift, 0.5).float())
        with elign.attach(net, "fc", loaded):
            torch.testing.assert_close(net(x), wanted)
        assert torch.equal(net(x), plain)

    forward = type(aligner)().fit_latents(*drift, direction="forward")
    statistics = elign.ClassStatistics().update(drift[0], torch.arange(120) % 4)
    moved = forward.transport(statistics)
    exact = scaled(statistics.means, drift[1], drift[0], 1.0)
    torch.testing.assert_close(moved.means.double(), exact, atol=0.3, rtol=0)  # by samples: it is not declared affine

    z = drift[1][:7]
    for made, run in files_of(tmp_path, ALONE, aligner):
        assert made.difference < 1e-4
        torch.testing.assert_close(run(made.path, z), scaled(z, *drift, 0.5).float(), atol=1e-4, rtol=1e-4)
    elign.attach(net, "fc", aligner)
    for made, run in files_of(tmp_path, WHOLE, net, x):
        torch.testing.assert_close(run(made.path, x), wanted, atol=1e-4, rtol=1e-4)


def far(z, z_new, quantile):
    """What `DrillFar` should do."""
    center = z_new.mean(0)
    return (z - center).norm(dim=1) > (z_new - center).norm(dim=1).quantile(quantile)


def test_a_new_gate_is_attached_saved_loaded_and_exported(own_class, drift, shift, net, x, tmp_path):
    with torch.no_grad():
        latents = net.body(x)
    gate = own_class(GATE, "DrillFar")(quantile=0.4).fit(latents)
    loaded = same_after_saving(gate, elign.Gate, tmp_path / "gate.safetensors")

    where = far(latents, latents, 0.4)
    assert 0 < int(where.sum()) < len(x)
    assert torch.equal(loaded(latents), where)
    with torch.no_grad(), elign.attach(net, "fc", shift, gate=loaded):
        moved = torch.where(where.unsqueeze(1), latents + shift.shift, latents)
        torch.testing.assert_close(net(x), net.fc.forward(moved))
    with pytest.raises(elign.LatentError):
        loaded(torch.zeros(2, 5))

    z_prev, z_cur = drift
    aligner = elign.MeanShift().fit_latents(*drift)
    gate.fit(z_cur)
    z = z_cur[:40]
    where = far(z, z_cur, 0.4).unsqueeze(1)
    assert 0 < int(where.sum()) < len(z)
    wanted = torch.where(where, z + (z_prev.mean(0) - z_cur.mean(0)), z)
    for made, run in files_of(tmp_path, ALONE, aligner, gate=gate, example=z):
        torch.testing.assert_close(run(made.path, z), wanted, atol=1e-5, rtol=1e-5)


def city_block(z, statistics, logits, share):
    """What `DrillCityBlock` should do."""
    return torch.stack([share * logits[:, c] - (z - m).abs().sum(1) for c, m in enumerate(statistics.means)], dim=1)


def test_a_new_classifier_is_attached_saved_and_loaded(own_class, drift, statistics, net, x, tmp_path):
    classifier = own_class(CLASSIFIER, "DrillCityBlock")(share=0.25).fit(statistics)
    loaded = same_after_saving(classifier, elign.LatentClassifier, tmp_path / "classifier.safetensors")
    with torch.no_grad():
        latents, logits = net.body(x), net(x)
        with elign.attach(net, "fc", loaded):
            torch.testing.assert_close(net(x), city_block(latents, statistics, logits, 0.25))
        assert torch.equal(net(x), logits)

    # Inside of others, too: their files hold it.
    aligner = elign.MeanShift().fit_latents(*drift)
    voting = elign.Voting([elign.HeadLogits(), elign.Aligned(aligner, classifier)], task_boundaries=2)
    labels = torch.arange(120) % 4
    voting.fit(z=drift[1], labels=labels, head=net.fc)
    again = same_after_saving(voting, elign.LatentClassifier, tmp_path / "voting.safetensors")
    with torch.no_grad():
        assert torch.equal(again(latents, logits=logits), voting(latents, logits=logits))

    # And as the classifier of a repair.
    old = elign.ClassStatistics().update(drift[0][labels < 2], labels[labels < 2])
    new = labels >= 2
    repair = elign.Repair("fc", classifier=type(classifier)(share=0.25), force=True)
    repair.fit_latents(drift[0][new], drift[1][new], labels[new], head=net.fc, statistics=old)
    assert repair.mode == "classifier"
    same_after_saving(repair, elign.LatentClassifier, tmp_path / "repair.safetensors")
    with torch.no_grad(), repair.attach(net):
        raw = city_block(latents, repair.statistics, logits, 0.25)
        torch.testing.assert_close(net(x), (raw / repair.temperature).log_softmax(dim=1))


def test_a_new_classifier_is_exported(own_class, statistics, net, x, tmp_path):
    classifier = own_class(CLASSIFIER, "DrillCityBlock")().fit(statistics)
    with torch.no_grad():
        wanted = city_block(net.body(x), statistics, net(x), 0.5)
    elign.attach(net, "fc", classifier)
    for made, run in files_of(tmp_path, WHOLE, net, x):
        assert made.difference < 1e-4
        torch.testing.assert_close(run(made.path, x), wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(run(made.path, x[:1]), wanted[:1], atol=1e-4, rtol=1e-4)
