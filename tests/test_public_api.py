"""What `import elign` offers, and what it must not drag in."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import elign

ROOT = Path(elign.__file__).parent
CORE = sorted(ROOT.glob("*.py"))


def is_error(thing):
    return isinstance(thing, type) and issubclass(thing, BaseException)


def test_all_is_sorted_complete_and_without_doubles():
    assert elign.__all__ == sorted(set(elign.__all__), key=lambda name: (name[0].islower(), name))
    public = {
        name
        for name, thing in vars(elign).items()
        if not name.startswith("_")
        and not inspect.ismodule(thing)
        and getattr(thing, "__module__", "").startswith("elign")
    }
    assert public == set(elign.__all__)


@pytest.mark.parametrize("name", elign.__all__)
def test_every_public_name_is_documented_with_an_example(name):
    thing = getattr(elign, name)
    assert thing.__doc__
    if not is_error(thing):
        assert ">>>" in thing.__doc__


@pytest.mark.parametrize("name", [name for name in elign.__all__ if isinstance(getattr(elign, name), type)])
def test_every_public_method_is_documented(name):
    for method, thing in vars(getattr(elign, name)).items():
        if not method.startswith("_") and callable(thing):
            assert inspect.getdoc(thing), f"{name}.{method}"


def test_every_error_can_be_caught_as_one_and_as_a_python_error():
    errors = [getattr(elign, name) for name in elign.__all__ if is_error(getattr(elign, name))]
    assert len(errors) == 6
    assert all(issubclass(error, elign.ElignError) for error in errors)
    assert all(issubclass(error, ValueError | RuntimeError) for error in errors if error is not elign.ElignError)


def test_importing_the_core_imports_nothing_of_the_bench():
    heavy = ["torchvision", "elign.lab", "sklearn", "matplotlib", "plotly", "rich", "scipy", "pandas"]
    code = f"import sys, elign; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_no_file_of_the_core_imports_the_bench(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            assert node.level == 0
        else:
            continue
        assert not any(name == "elign.lab" or name.startswith("elign.lab.") for name in imported)


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_no_file_of_the_core_can_read_a_pickle(path):
    source = path.read_text(encoding="utf-8")
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert "import pickle" not in source
    assert "torch.load" not in source
    assert names.isdisjoint({"Unpickler", "loads"} if path.name != "storage.py" else {"Unpickler"})


def test_the_version_is_that_of_the_project():
    import tomllib

    project = ROOT.parent.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("not run from a checkout")
    assert elign.__version__ == tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize("name", ["Aligner", "EnergyAligner", "MeanShift", "RandomShift", "Ridge", "Identity"])
def test_options_of_aligners_are_keywords(name):
    for parameter in inspect.signature(getattr(elign, name)).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").exists()
