"""How the source treats what comes from outside: nothing is unpickled, no entity expanded, no archive unpacked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "elign"
TREES = {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text("utf-8")) for file in SOURCE.rglob("*.py")}

# Modules that run what a file says, or are built on one that does.
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "pandas"}
# Parsers of XML that this project does not know how to keep from expanding entities.
XML = {"xml.dom", "xml.sax", "xml.etree.cElementTree", "lxml", "xml.dom.minidom", "xmlrpc"}


def imported(tree: ast.AST) -> set[str]:
    """The modules that a file imports, at its top or later."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with what is called, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def option(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == name), None)


def wrong(tree: ast.AST) -> list[str]:
    """What a file does with foreign data that it must not do."""
    modules = imported(tree)
    found = [f"imports {name}" for name in modules if name.partition(".")[0] in UNPICKLERS]
    found += [f"imports {name}" for name in modules if any(name == one or name.startswith(f"{one}.") for one in XML)]
    for called, call in calls(tree):
        last = called.rpartition(".")[2]
        if called.endswith("torch.load") and option(call, "weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if called.endswith(("np.load", "numpy.load")) and option(call, "allow_pickle") != "False":
            found.append("np.load without allow_pickle=False")
        # `extract` is also what is done to latents: it unpacks where a module of archives is imported.
        if last in ("extractall", "unpack_archive") or (last == "extract" and modules & {"tarfile", "zipfile"}):
            found.append(f"unpacks an archive to where it says: {called}")
        if last in ("eval", "exec") and called in ("eval", "exec", "builtins.eval", "builtins.exec"):
            found.append(called)
        if called.endswith(("ElementTree.parse", "ElementTree.fromstring", "ElementTree.XML", "ElementTree.iterparse")):
            found.append(f"expands entities: {called}")
        if called.endswith("yaml.load"):
            found.append("yaml.load makes objects")
        if option(call, "shell") == "True":
            found.append("runs a shell")
    return found


@pytest.mark.parametrize("file", sorted(TREES))
def test_nothing_foreign_is_run_or_expanded(file):
    assert wrong(TREES[file]) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import joblib.numpy_pickle",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "tar.extractall(folder)",
        "import tarfile\ntar.extract(member)",
        "shutil.unpack_archive(path)",
        "from xml.dom import minidom",
        "ElementTree.parse(path)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_scan_sees_each_of_them(code):
    assert wrong(ast.parse(code))


def test_json_is_read_in_two_files_of_the_library_only():
    read = {file for file, tree in TREES.items() for called, _ in calls(tree) if called.endswith("loads")}
    assert {file for file in read if not file.startswith("lab/")} == {"utils/fitted.py", "utils/legacy.py"}


def test_no_archive_is_opened():
    assert not [file for file, tree in TREES.items() if imported(tree) & {"tarfile", "zipfile"}]


def test_xml_is_parsed_in_one_place_only_where_a_document_type_is_refused():
    used = {file for file, tree in TREES.items() if any(name.startswith("xml") for name in imported(tree))}
    assert used == {"lab/detection/data/voc.py"}
    parsers = [call for called, call in calls(TREES["lab/detection/data/voc.py"]) if called.endswith("XMLParser")]
    assert [option(call, "target") for call in parsers] == ["_Builder()"]
