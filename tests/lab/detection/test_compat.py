"""Torchvision with and without its compiled operators; what an import changes is seen in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from textwrap import dedent

import pytest
import torch

from elign import ElignError
from elign.lab.detection import compat

without_operators = pytest.mark.skipif(compat.has_compiled_ops(), reason="torchvision's compiled operators load here")


def run(code, *, path=None):
    """The last line that a fresh process prints."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-W", "error::UserWarning", "-c", dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@without_operators
def test_torchvision_is_importable_after_an_import_that_failed():
    code = """
        import torch
        try:
            import torchvision
        except RuntimeError as error:
            assert "torchvision::nms does not exist" in str(error)
        else:
            raise SystemExit("this torchvision needs no help")
        import elign.lab.detection
        import torchvision
        elign.lab.detection.compat.prepare()
        boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0], [5.0, 5.0, 9.0, 9.0]])
        print(torchvision.ops.nms(boxes, torch.tensor([0.1, 0.3, 0.2]), 0.5).tolist(), torchvision.extension._has_ops())
    """
    assert run(code) == "[1, 2] False"


@pytest.fixture
def fake(tmp_path):
    """A torchvision that has what `compat` looks at, and decides as the real one does; its library is still missing."""
    package = tmp_path / "torchvision"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text("from torchvision import extension, ops\n")
    decide = "def _has_ops():\n    return torch.loads\n\n\ndef _assert_has_ops():\n    assert _has_ops()\n"
    load = "torch.loads = True\ntry:\n    torch.ops.load_library(LIBRARY)\nexcept OSError:\n    torch.loads = False\n"
    library = package / f"_C{EXTENSION_SUFFIXES[0]}"
    (package / "extension.py").write_text(f"import torch\n\nLIBRARY = {str(library)!r}\n{load}\n\n{decide}")
    (package / "ops" / "__init__.py").write_text("from torchvision.ops import boxes, roi_align\n")
    for module in ("boxes", "roi_align"):
        (package / "ops" / f"{module}.py").write_text("from torchvision.extension import _assert_has_ops, _has_ops\n")
    return library


def put(library, content):
    """A library that loads (any that torch can load: one of its own), one that does not, or none."""
    if content == "good":
        shutil.copy(torch._C.__file__, library)
    elif content == "damaged":
        library.write_bytes(b"not a library")


def test_nothing_is_touched_where_the_library_loads(fake):
    code = """
        import sys
        import torch
        from elign.lab.detection import compat

        assert "torchvision" not in sys.modules
        import torchvision
        compat.prepare()
        assert compat.has_compiled_ops()
        assert not hasattr(torch.ops.torchvision, "nms")
        modules = torchvision.ops.boxes, torchvision.ops.roi_align
        names = "_assert_has_ops", "_has_ops"
        print([getattr(module, name) is vars(torchvision.extension)[name] for module in modules for name in names])
    """
    put(fake, "good")
    assert run(code, path=fake.parents[1]) == "[True, True, True, True]"


def test_what_somebody_else_only_defined_is_supplied(fake):
    # Torchvision is imported already, without operators: one is defined without an implementation, others are not.
    code = """
        import torch
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
        import elign.lab.detection

        torchvision.ops.boxes._assert_has_ops()
        torchvision.ops.roi_align._assert_has_ops()
        assert torchvision.ops.roi_align._has_ops() and not torchvision.extension._has_ops()
        assert torch.ops.torchvision.nms(torch.ones(1, 4), torch.ones(1), 0.5).tolist() == [0]
        print(torch.ops.torchvision.roi_align(torch.ones(1, 1, 4, 4), torch.zeros(1, 5), 1.0, 1, 1, 2, False).item())
    """
    put(fake, "damaged")
    assert run(code, path=fake.parents[1]) == "1.0"


@pytest.mark.parametrize(("content", "loads"), [("good", True), ("damaged", False), ("absent", False)])
def test_operators_load_if_the_library_does(fake, content, loads, monkeypatch):
    put(fake, content)
    spec = ModuleSpec("torchvision", None, is_package=True)
    spec.submodule_search_locations = [str(fake.parent)]
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.setattr("importlib.util.find_spec", {"torchvision": spec}.get)
    assert compat.has_compiled_ops() is loads


@pytest.mark.parametrize("function", [compat.prepare, compat.has_compiled_ops])
def test_a_missing_torchvision_is_named(function, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(compat.TorchvisionMissingError, match=r"pip install 'elign\[detection\]'") as caught:
        function()
    assert isinstance(caught.value, ElignError)
    assert isinstance(caught.value, ImportError)


def test_nothing_else_of_the_project_imports_torchvision():
    code = """
        import contextlib, importlib, pathlib, sys
        import elign
        from elign.integrations import MissingLibraryError

        root = pathlib.Path(elign.__file__).parent
        names = [".".join(("elign", *path.relative_to(root).with_suffix("").parts)) for path in root.rglob("*.py")]
        for name in names:
            if not name.startswith("elign.lab.detection."):
                with contextlib.suppress(MissingLibraryError):  # adapters to other frameworks, if these are not there
                    importlib.import_module(name.removesuffix(".__init__"))
        print(len(names) > 100, [name for name in sys.modules if name.partition(".")[0] == "torchvision"])
    """
    assert run(code) == "True []"


def detector():
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=8), torch.nn.ReLU())
    backbone.out_channels = 8
    anchors = AnchorGenerator(((8, 16),), ((1.0,),))
    sizes = {"min_size": 48, "max_size": 48, "rpn_pre_nms_top_n_test": 50, "box_detections_per_img": 5}
    return FasterRCNN(backbone, num_classes=3, rpn_anchor_generator=anchors, **sizes)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_detector_learns_and_detects(precision):
    torch.manual_seed(0)
    model = detector()
    images = [torch.rand(3, 48, 40), torch.rand(3, 32, 48)]
    targets = [{"boxes": torch.tensor([[4.0, 4.0, 20.0, 24.0]]), "labels": torch.tensor([label])} for label in (1, 2)]
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        sum(model(images, targets).values()).backward()
        # By way of the regions and by way of the proposals, each with a gradient of its own.
        assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in model.parameters())
        found = model.eval()(images)
    assert [set(one) for one in found] == [{"boxes", "labels", "scores"}] * 2
    assert all(len(one["boxes"]) for one in found)


def test_torchvisions_functions_and_modules_give_what_ours_do():
    from torchvision import ops

    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 7.0], [3.0, 1.0, 12.0, 9.0]])
    scores = torch.tensor([0.3, 0.9, 0.5])
    assert ops.nms(boxes, scores, 0.5).tolist() == [1, 2]
    assert ops.batched_nms(boxes, scores, torch.tensor([0, 1, 1]), 0.5).tolist() == [1, 2, 0]
    maps = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = compat.ops.roi_align(maps, [boxes], 3, 0.5, 2)
    pooler = ops.MultiScaleRoIAlign(["0"], 3, 2)
    for found in (
        ops.roi_align(maps, [boxes], 3, 0.5, 2),
        ops.RoIAlign(3, 0.5, 2)(maps, [boxes]),
        pooler({"0": maps}, [boxes], [(12, 12)]),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
        gradients = (torch.autograd.grad((values**2).sum(), maps, retain_graph=True)[0] for values in (found, expected))
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@without_operators
def test_operators_that_stay_missing_still_say_so():
    from torchvision import ops

    with pytest.raises(RuntimeError, match="Couldn't load custom"):
        ops.roi_pool(torch.zeros(1, 1, 4, 4), [torch.zeros(1, 4)], 2)
