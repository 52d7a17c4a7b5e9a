"""What `import elign` offers, and what it must not drag in."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import elign

ROOT = Path(elign.__file__).parent


def is_aligner(thing):
    return isinstance(thing, type) and issubclass(thing, elign.Aligner)


def is_error(thing):
    return isinstance(thing, type) and issubclass(thing, BaseException)


def test_all_is_complete_and_without_doubles():
    assert len(set(elign.__all__)) == len(elign.__all__)  # ruff sorts them
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


@pytest.mark.parametrize(
    "modules", ["elign", "elign.integrations, elign.integrations.pycil, elign.integrations.mammoth"]
)
def test_importing_the_library_imports_no_framework_and_nothing_of_the_bench(modules):
    heavy = ["torchvision", "elign.lab", "sklearn", "matplotlib", "plotly", "rich", "scipy", "pandas"]
    heavy += ["avalanche", "lightning", "transformers", "timm"]
    code = f"import sys, {modules}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_that_of_the_project():
    import tomllib

    project = ROOT.parent.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("not run from a checkout")
    assert elign.__version__ == tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize("name", [thing.__name__ for thing in vars(elign).values() if is_aligner(thing)])
def test_options_of_aligners_are_keywords(name):
    for parameter in inspect.signature(getattr(elign, name)).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").exists()
