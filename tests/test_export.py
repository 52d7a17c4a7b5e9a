"""Exported graphs compute what PyTorch computes, for every aligner and gate, and what cannot be exported says so."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import eli
from eli import export, export_files
from eli.export import ExportError, export_model_onnx, export_model_torch, export_onnx, export_torch
from eli.export_files import Recording, write_onnx
from eli.export_tracing import AlignedLatents, TracedAligner, TracedGate

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PAGE = Path(__file__).parents[1] / "docs" / "export.md"
DIM = 6
# Steps multiply the graph, and torch needs a while for each of its operations: a few show what many would.
STEPS = 2


def drifted(rows=200, seed=7):
    z_prev = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))
    return z_prev, z_prev.roll(1, dims=1) + 0.5


def energy(hidden, **options):
    options = {"iterations": 30, "learning_rate": 1e-2, "steps": STEPS, "step_size": 0.5} | options
    return eli.EnergyAligner(hidden=hidden, **options).fit_latents(*drifted())


ALIGNERS = {
    "linear energy": lambda: energy(()),
    "energy of one layer": lambda: energy((64,)),
    "energy of two layers": lambda: energy((64, 64)),
    "half steps, float64": lambda: eli.EnergyAligner(
        hidden=(8, 4, 3), steps=1, half_step=True, iterations=9, learning_rate=1e-2
    ).fit_latents(*(z.double() for z in drifted())),
    "no steps": lambda: energy((4,), steps=0),
    "identity": lambda: eli.Identity().fit_latents(*drifted()),
    "mean shift": lambda: eli.MeanShift().fit_latents(*drifted()),
    "random shift": lambda: eli.RandomShift().fit_latents(*drifted()),
    "ridge": lambda: eli.Ridge().fit_latents(*drifted()),
}
PLAIN = ("half steps, float64", "no steps")
GATES = {
    "none": lambda aligner: eli.Always(),
    "prediction": lambda aligner: eli.ByPrediction(known=[0, 2]),
    "soft prediction": lambda aligner: eli.ByPrediction(known=2, soft=True),
    "energy": lambda aligner: eli.ByEnergy(quantile=0.5).calibrate(aligner, drifted()[1]),
    "probe": lambda aligner: eli.ByProbe().fit(*drifted()),
    "soft probe": lambda aligner: eli.ByProbe(soft=True).fit(*drifted()),
}
COMBINATIONS = [
    (aligner, gate)
    for aligner in ALIGNERS
    for gate in GATES
    if gate == "none" or (aligner not in PLAIN and (gate != "energy" or "energy" in aligner.split()))
]


def head_of(classes=4):
    torch.manual_seed(5)
    return nn.Linear(DIM, classes).eval()


class Everything(nn.Module):
    """All combinations side by side: (N, D) to (N, combinations, D)."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, z):
        return torch.stack([part(z) for part in self.parts], dim=1)


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def aligned(aligner, gate, head, z):
    with torch.no_grad():
        return aligner.align(z, where=gate(z, head=head, aligner=aligner))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """One ONNX file with all combinations, since an export takes seconds; what goes into each; and the latents."""
    made = {name: make() for name, make in ALIGNERS.items()}
    head, z = head_of(), drifted(seed=8)[1]
    pairs = {(a, g): (made[a], GATES[g](made[a])) for a, g in COMBINATIONS}
    module = Everything(
        AlignedLatents(
            export.deterministic(aligner, drop_noise=False), export.ready_gate(gate, aligner), copy.deepcopy(head)
        )
        for aligner, gate in pairs.values()
    )
    expected = torch.stack([aligned(*pair, head, z) for pair in pairs.values()], dim=1)
    path = tmp_path_factory.mktemp("onnx") / "everything.onnx"
    write_onnx(Recording.of(module, z, expected, names=("latents", "aligned")), path, opset=18, verify=False)
    return path, pairs, head, z


@pytest.fixture(scope="module")
def served(everything):
    path, _, _, z = everything
    return {rows: run_onnx(path, z[:rows]) for rows in (1, 3, 200)}


@pytest.mark.parametrize("combination", COMBINATIONS, ids=", ".join)
def test_onnxruntime_aligns_as_pytorch_does(everything, served, combination):
    _, pairs, head, z = everything
    aligner, gate = pairs[combination]
    for rows, results in served.items():
        result = results[:, COMBINATIONS.index(combination)]
        torch.testing.assert_close(result, aligned(aligner, gate, head, z[:rows]), rtol=1e-5, atol=1e-5)
    moved = (result != z).any(dim=1)
    if combination[0] not in ("identity", "no steps"):
        assert moved.any()
    if combination[1] in ("prediction", "energy", "probe"):
        assert not moved.all()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An energy aligner with an energy gate, by the public function."""
    aligner = energy((64, 64))
    gate = GATES["energy"](aligner)
    path = tmp_path_factory.mktemp("onnx") / "folder" / "aligner.onnx"
    return aligner, gate, export_onnx(aligner, path, gate=gate, example=drifted()[1][:50])


def test_the_file_is_a_small_graph_with_named_ends_and_a_free_number_of_rows(exported):
    _, _, made = exported
    graph = onnx.load(made.path).graph
    ends = {
        end.name: [dim.dim_param or dim.dim_value for dim in end.type.tensor_type.shape.dim]
        for end in (*graph.input, *graph.output)
    }
    assert ends == {"latents": ["batch", DIM], "aligned": ["batch", DIM]}
    assert made.nodes == len(graph.node) <= 10 * STEPS + 10
    assert made.difference < 1e-5
    assert list(made.path.parent.iterdir()) == [made.path]


def test_the_file_says_its_operators_and_nothing_about_the_machine(exported):
    content = exported[2].path.read_bytes()
    assert onnx.load_from_string(content).opset_import[0].version == 18
    assert b".py" not in content
    assert str(Path(eli.__file__).parent).encode() not in content


class Conv(nn.Module):
    """Pictures to a dictionary with logits; the head gets its latent by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, DIM, 3, stride=2), nn.BatchNorm2d(DIM), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)
        )
        self.fc = nn.Linear(DIM, 4)

    def forward(self, x):
        return {"logits": self.fc(input=self.body(x).flatten(1))}


@pytest.fixture
def conv():
    torch.manual_seed(3)
    return Conv().eval()


PICTURES = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def test_a_whole_model_in_onnx(conv, tmp_path):
    with torch.no_grad():
        z = conv.body(PICTURES).flatten(1)
        plain = conv(PICTURES)["logits"]
    aligner = eli.EnergyAligner(hidden=(8, 8), steps=STEPS, step_size=2.0, iterations=30, learning_rate=1e-2)
    aligner.fit_latents(z, z + 1)
    old = [int(plain[0].argmax())]
    eli.attach(conv, "fc", aligner, gate=eli.ByPrediction(known=old), argument="input")
    state, conv.body[3].training = copy.deepcopy(conv.state_dict()), True
    made = export_model_onnx(conv, tmp_path / "model.onnx", PICTURES[:1])
    assert conv.body[3].training
    assert all(torch.equal(state[name], tensor) for name, tensor in conv.state_dict().items())
    assert isinstance(next(iter(conv.fc._forward_pre_hooks.values())).aligner, eli.EnergyAligner)
    conv.eval()
    for rows in (1, 3, 9):
        with torch.no_grad():
            expected = conv(PICTURES[:rows])["logits"]
        torch.testing.assert_close(run_onnx(made.path, PICTURES[:rows]), expected, rtol=1e-5, atol=1e-5)
    changed = (expected != plain).any(dim=1)
    assert torch.equal(changed, plain.argmax(dim=1) == old[0])
    assert changed.any()


@pytest.mark.parametrize("gate", ["none", "prediction", "soft prediction", "energy", "probe"])
def test_torch_export_of_an_aligner(tmp_path, gate):
    aligner, head, z = energy((8, 8)), head_of(), drifted(seed=8)[1]
    gate = GATES[gate](aligner)
    made = export_torch(aligner, tmp_path / "aligner.pt2", gate=gate, head=head, example=z[:1])
    program = torch.export.load(made.path)
    for rows in (1, 3, 200):
        expected = aligned(aligner, gate, head, z[:rows])
        torch.testing.assert_close(program.module()(z[:rows]), expected, rtol=1e-5, atol=1e-5)
    assert made.difference < 1e-5
    # Neither the example nor the maker's folders are in the file.
    assert not program.example_inputs[0][0].any()
    assert b'.py\\"' not in made.path.read_bytes()


def test_torch_export_of_a_model_whose_head_reads_several_latents_per_input(tmp_path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (5, 4)), nn.Linear(4, DIM), nn.Linear(DIM, 4)).eval()
    eli.attach(model, "2", energy((8,)), gate=GATES["soft probe"](None))
    x = torch.randn(7, 20)
    made = export_model_torch(nn.DataParallel(model), tmp_path / "model.pt2", x.double())
    program = torch.export.load(made.path).module()
    for rows in (1, 7):
        torch.testing.assert_close(program(x[:rows]), model(x[:rows]).detach(), rtol=1e-5, atol=1e-5)


def test_noise_is_refused_or_left_out(tmp_path):
    noisy, quiet = energy((8,)), energy((8,))
    noisy.noise = 1.0
    with pytest.raises(ExportError, match="drop_noise=True"):
        export_torch(noisy, tmp_path / "a.pt2")
    made = export_torch(noisy, tmp_path / "a.pt2", drop_noise=True)
    z = drifted()[1]
    torch.testing.assert_close(torch.export.load(made.path).module()(z), quiet.align(z))
    assert noisy.noise == 1.0


class Loud(eli.Gate):
    learns = False

    def forward(self, z, *, head=None, aligner=None):
        return z.norm(dim=-1) > 2


class Half(eli.Aligner):
    learns = False

    def _move(self, rows, generator):
        return rows / 2


def test_aligners_and_gates_of_ones_own(tmp_path):
    z = drifted()[1]
    with pytest.raises(eli.OptionError, match="example=latents"):
        export_torch(Half(), tmp_path / "a.pt2", gate=Loud())
    made = export_torch(Half(), tmp_path / "a.pt2", gate=Loud(), example=z)
    expected = torch.where(z.norm(dim=1, keepdim=True) > 2, z / 2, z)
    torch.testing.assert_close(torch.export.load(made.path).module()(z), expected)


class Branching(Half):
    def _move(self, rows, generator):
        return rows / 2 if rows.sum() > 0 else rows


class Wrong(Half):
    def _move(self, rows, generator):
        return rows * 3 if torch.compiler.is_exporting() else rows / 2


@pytest.mark.parametrize(("aligner", "message"), [(Branching(), "cannot record"), (Wrong(), "something else")])
def test_what_comes_out_wrong_is_not_written(tmp_path, aligner, message):
    path = tmp_path / "a.pt2"
    path.write_text("before")
    with pytest.raises(ExportError, match=message):
        export_torch(aligner, path, example=drifted()[1])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_graph_is_written_if_one_insists(tmp_path):
    made = export_torch(Wrong(), tmp_path / "a.pt2", example=drifted()[1], verify=False)
    assert made.difference is None
    assert made.path.exists()


def test_an_energy_of_ones_own_is_refused(tmp_path):
    class Own(eli.EnergyModel):
        def forward(self, z):
            return super().forward(z) ** 2

    aligner = energy((4,))
    aligner.energy = Own(DIM, (4,))
    with pytest.raises(ExportError, match="Own"):
        export_torch(aligner, tmp_path / "a.pt2")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gate": eli.ByMask(torch.ones(3, dtype=torch.bool))}, ExportError, "ByMask"),
        ({"gate": eli.ByPrediction(2)}, eli.OptionError, "head="),
        ({"gate": eli.ByPrediction(9), "head": head_of()}, eli.OptionError, "known=9"),
        ({"gate": eli.ByPrediction(2), "head": head_of().forward}, eli.OptionError, "module"),
        ({"gate": eli.ByProbe()}, eli.NotFittedError, "ByProbe"),
        ({"example": torch.zeros(0, DIM)}, eli.LatentError, "empty"),
        ({"example": torch.zeros(3, DIM + 1)}, eli.LatentError, "dimension"),
        ({"opset": 9}, eli.OptionError, "opset"),
    ],
)
def test_what_cannot_be_exported_says_so(tmp_path, shift, options, error, message):
    with pytest.raises(error, match=message):
        export_onnx(shift, tmp_path / "a.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_an_energy_gate_needs_an_energy(tmp_path, shift):
    with pytest.raises(ExportError, match="MeanShift"):
        export_onnx(shift, tmp_path / "a.onnx", gate=GATES["energy"](energy((4,))))


def test_what_is_no_fitted_aligner_says_so(tmp_path, net):
    with pytest.raises(eli.NotFittedError):
        export_onnx(eli.Ridge(), tmp_path / "a.onnx")
    with pytest.raises(eli.OptionError, match="export_model_onnx"):
        export_onnx(net, tmp_path / "a.onnx")


def test_models_that_cannot_be_exported_say_so(tmp_path, net, shift):
    with pytest.raises(ExportError, match="attach"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(2, 5))
    attachment = eli.attach(net, "fc", shift, gate=eli.ByMask(torch.ones(2, dtype=torch.bool)))
    with pytest.raises(ExportError, match="ByMask"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(2, 5))
    attachment.gate = eli.Always()
    with pytest.raises(eli.LatentError, match="batch"):
        export_model_torch(net, tmp_path / "a.pt2", torch.zeros(5))
    whole = nn.Sequential(net, nn.Flatten(0))
    with pytest.raises(eli.AttachError, match="one per input"):
        export_model_torch(whole, tmp_path / "a.pt2", torch.zeros(2, 5))


def test_missing_packages_are_named_with_the_command(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export_files, "_installed", lambda name: name != "onnxscript")
    with pytest.raises(ExportError, match=re.escape("needs onnxscript: pip install 'eli[export]'")):
        export_onnx(shift, tmp_path / "a.onnx")


def test_without_a_runtime_nothing_is_compared(tmp_path, shift, monkeypatch):
    monkeypatch.setattr(export_files, "_installed", lambda name: name != "onnxruntime")
    assert export_onnx(shift, tmp_path / "a.onnx").difference is None


def test_random_numbers_are_left_alone(tmp_path, shift, untouched_random_state):
    export_torch(shift, tmp_path / "a.pt2")


def test_traced_parts_are_no_kinds_of_aligner_or_gate_that_a_file_could_name():
    assert not issubclass(TracedAligner, eli.Aligner)
    assert not issubclass(TracedGate, eli.Gate)


def test_the_core_imports_without_the_packages_of_the_extra():
    code = "import sys, eli, eli.export; print([n for n in ('onnx', 'onnxscript', 'onnxruntime') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_runs_as_it_is_printed(conv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    making, serving = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(serving.strip().splitlines()) <= 17

    class Classifier(Conv):
        def forward(self, x):
            return self.fc(self.body(x).flatten(1))

    model = Classifier().eval()
    model.fc = nn.Linear(DIM, 60).eval()
    exec(making, {"model": model, "aligner": eli.MeanShift().fit_latents(*drifted()), "images": PICTURES})
    names = {"pictures": PICTURES.numpy()}
    exec(serving, names)
    assert names["classes"].tolist() == model(PICTURES).argmax(dim=1).tolist()
    assert (tmp_path / "aligner.onnx").exists()
