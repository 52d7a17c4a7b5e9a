"""`elign doctor`, also on machines that lack something, and `elign.compat`."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest
import torch

from elign.lab.cli.main import main
from elign.lab.repairing import diagnosis


def test_the_doctor_sees_this_machine(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert "cpu" in found["torch"]["devices"]
    operators = found["torchvision operators"]
    assert operators["load"] or "elign.compat" in operators["remedy"]
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"threads: {torch.get_num_threads()}" in printed
    assert "torchvision operators" in printed


def test_what_is_missing_is_said_with_its_remedy(monkeypatch, capsys):
    version = importlib.metadata.version

    def without(name):
        if name in ("onnx", "plotly", "timm"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert main(["doctor", "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing extras"]
    assert "onnx" in missing["export"]["packages"]
    assert missing["export"]["install"] == "pip install 'elign[export]'"
    assert "plotly" in missing["lab"]["packages"]
    assert "dev" not in missing


@pytest.mark.parametrize("name", ["_torch", "_operators"])
def test_the_doctor_does_not_fall_ill(monkeypatch, capsys, name):
    def fail():
        raise OSError("a library does not load")

    monkeypatch.setattr(diagnosis, name, fail)
    assert main(["doctor"]) == 0
    assert "OSError: a library does not load" in capsys.readouterr().out


def test_compat_makes_torchvision_work():
    """In a process of its own: what is imported first decides."""
    code = (
        "import elign.compat, torch, torchvision\n"
        "from torchvision.ops import nms\n"
        "print(elign.compat.torchvision_state, nms(torch.tensor([[0., 0., 1., 1.]]), torch.ones(1), 0.5).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in (["compiled", "[0]"], ["supplied", "[0]"])


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom elign.lab.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("remember", "repair", "doctor"))
