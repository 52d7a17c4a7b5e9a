"""What can be said of the documentation site without sphinx: `scripts/build-docs` itself is a step of CI."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md")))


def documented():
    """The full names of everything that the API pages show."""
    module = ""
    for directive, name in re.findall(r"^\.\. (py:currentmodule|auto\w+):: (\S+)$", API, flags=re.MULTILINE):
        if directive == "py:currentmodule":
            module = name
        else:
            yield name if name.startswith("elign.") else f"{module}.{name}"


@pytest.mark.parametrize("module", ["elign", "elign.export", "elign.integrations"])
def test_every_public_name_is_documented_once(module):
    there = list(documented())
    assert [name for name in import_module(module).__all__ if there.count(f"{module}.{name}") != 1] == []


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [*DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md"), DOCS / "api" / "index.md"]
    names = {page.relative_to(DOCS).with_suffix("").as_posix() for page in pages} - {"index"}
    listed = [line for block in re.findall(r"```{toctree}\n(.*?)```", index, flags=re.DOTALL) for line in block.split()]
    assert names <= set(listed)


def test_without_an_environment_the_script_says_what_to_do(tmp_path):
    environment = {**os.environ, "VENV": str(tmp_path)}
    done = subprocess.run([ROOT / "scripts" / "build-docs"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "make test" in done.stderr
    assert list(tmp_path.iterdir()) == []
