"""What `import elign` offers, and what it must not drag in."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import elign


def part_of(path):
    return path.relative_to(ROOT).parts[0]


def relative(path):
    return path.relative_to(ROOT).as_posix()


ROOT = Path(elign.__file__).parent
# What each part of the core may import beside itself; the files at the top (`Repair`) may import all of these.
LAYERS = {
    "utils": set(),
    "energy": {"utils"},
    "statistics": {"utils"},
    "aligners": {"energy", "statistics", "utils"},
    "classifiers": {"aligners", "statistics", "utils"},
    "gates": {"aligners", "utils"},
    "attachments": {"aligners", "classifiers", "gates", "utils"},
    "export": {"aligners", "attachments", "classifiers", "gates", "utils"},
}
# `compat` stands above the bench, whose operators it supplies.
CORE = sorted(
    path for path in ROOT.rglob("*.py") if (path.parent == ROOT and path.stem != "compat") or part_of(path) in LAYERS
)


READ_JSON = {"utils/fitted.py", "utils/legacy.py"}  # with `json.loads`


def imported(path):
    """All names that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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


def test_importing_the_core_imports_nothing_of_the_bench():
    heavy = ["torchvision", "elign.lab", "sklearn", "matplotlib", "plotly", "rich", "scipy", "pandas"]
    code = f"import sys, elign; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", CORE, ids=relative)
def test_no_file_of_the_core_imports_the_bench(path):
    assert not any(name == "elign.lab" or name.startswith("elign.lab.") for name in imported(path))


def test_all_folders_of_the_package_are_known_here():
    parts = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"gates", "attachments"}
    assert parts == {*LAYERS, "integrations", "lab"}


@pytest.mark.parametrize("path", [path for path in CORE if path.parent != ROOT or path.stem in LAYERS], ids=relative)
def test_a_part_of_the_core_imports_lower_parts_only(path):
    part = part_of(path).removesuffix(".py")
    mine = [name.split(".") for name in imported(path) if name.split(".")[0] == "elign"]
    assert {name[1] for name in mine} <= LAYERS[part] | {part}


@pytest.mark.parametrize("path", CORE, ids=relative)
def test_no_file_of_the_core_can_read_a_pickle(path):
    source = path.read_text(encoding="utf-8")
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert "import pickle" not in source
    assert "torch.load" not in source
    assert names.isdisjoint({"Unpickler"} if relative(path) in READ_JSON else {"Unpickler", "loads"})


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
