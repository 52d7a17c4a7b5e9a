"""How the documentation site is made: sphinx reads this file when `scripts/build-docs` runs it. Nobody imports it.

Pages are markdown as GitHub shows it; the pages in `api/` are made from docstrings. The functions below are what that
takes beyond settings: links out of `docs/`, single backticks in docstrings, and names that a package hands on.
Sphinx and docutils are imported inside of them, since `pytest` collects this folder where neither is installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import elign

project = "elign"
version = release = elign.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

repository = os.environ.get("ELIGN_DOCS_REPOSITORY", "").rstrip("/")
"""Where files of the repository can be seen (the address that their paths are added to); empty: nowhere."""

# As GitHub does it, so that links such as results.md#what-the-toy-shows lead to the same place on both.
myst_heading_anchors = 4

default_role = "plain"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

nitpicky = True
# Types of other projects: their pages are elsewhere, and a build that fetched their indexes would need a network.
# (Fields of named tuples say `Tensor`, without its module.) And parts of the bench that stand in signatures, but that
# nobody who adds a learner or data makes by hand: each would need a page of its own.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|os|pathlib|rich|torch|torchvision)\..*|Tensor"),
    ("py:class", r"Annotated\[.*|(\w+Config|Engine)|elign\.lab\.config\.(schema\.\w+Config|composition\.Section)"),
    ("py:.*", r"(annotated_types|pydantic)\..*|FieldInfo|NoneType|Gt|Ge|Le|Lt|MinLen|MaxLen|Strict"),
    ("py:class", r"elign\.lab\.(registry\.T|evaluation\.methods\.base\.F)"),
    # Names that exist for type checkers only.
    ("py:class", r"nn\.\w+|Exemplars|elign\.utils\.fitted\._Class|elign\.statistics\.class_statistics\.Transporter"),
    ("py:class", r"elign\.lab\.data\.memory\.Memory"),
    ("py:class", r"elign\.lab\.detection\.(c4_networks\.\w+|detector\.RoiOutputs|data\.DataConfig)"),
    ("py:class", r"Count|Field|Flag|NotNegativeWhole|Proposals|Ratios|Share|ShortSides|Sides"),
]

html_theme = "furo"
html_title = f"elign {version}"
html_copy_source = False
html_show_copyright = False

_COLON = "\ue000"  # of those characters that mean nothing
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\))?")


def plain_role(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Any,
    options: dict[str, Any] | None = None,
    content: Sequence[str] = (),
) -> tuple[list[Any], list[Any]]:
    """Single backticks in a docstring: code, and a link where it is the name of something on these pages."""
    from docutils import nodes
    from docutils.utils import unescape
    from sphinx.domains.python import PyXRefRole

    if _NAME.fullmatch(text):
        return PyXRefRole()("py:obj", rawtext, text, lineno, inliner, options or {}, content)
    return [nodes.literal(rawtext, unescape(text))], []


def resolve_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Find what sphinx does not: `elign.aligners.base.Aligner` is documented as `elign.Aligner`.

    Errors are named without their modules. What single backticks hold need not be a name at all, so nobody is warned of
    those.
    """
    if node.get("refdomain") != "py":
        return None
    *modules, name = node["reftarget"].split(".")
    candidates = [".".join([*modules[:end], name]) for end in range(len(modules) - 1, 0, -1)]
    if node["reftype"] == "exc":
        node["refspecific"], candidates = True, [name]
    for target in candidates:
        found = env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)
        if found is not None:
            return found
    return contnode if node["reftype"] == "obj" else None


def outside_links(app: Any, doctree: Any) -> None:
    """Links to files that are not in `docs/`: into the repository if its address is known, else the file's path."""
    from docutils import nodes
    from sphinx import addnodes

    docs = Path(app.srcdir)
    for link in list(doctree.findall(addnodes.download_reference)):
        target = (docs / link["refdoc"]).parent / link["reftarget"]
        path = Path(os.path.relpath(target, docs.parent)).as_posix()
        text = link.astext()
        if repository:
            made = [nodes.reference("", text, refuri=f"{repository}/{path}")]
        elif text == path:
            made = [nodes.literal("", path)]
        else:
            made = [nodes.Text(f"{text} ("), nodes.literal("", path), nodes.Text(")")]
        link.replace_self(made)


def hide_colons(app: Any, what: str, name: str, made: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a colon for a type: attributes are annotated here."""
    if what in ("attribute", "data", "property"):
        lines[:] = [line.replace(":", _COLON) for line in lines]


def show_colons(app: Any, what: str, name: str, made: Any, options: Any, lines: list[str]) -> None:
    """Undo `hide_colons`, after napoleon."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def stand_in(module: str, name: str) -> None:
    """A class that an adapter can be derived from, where its library is in another environment than this one."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        base = type(name, (), {"__init_subclass__": classmethod(lambda cls, **options: None)})
        sys.modules |= {package: ModuleType(package), module: ModuleType(module)}
        setattr(sys.modules[module], name, base)


def setup(app: Any) -> None:
    """Called by sphinx."""
    stand_in("avalanche.core", "SupervisedPlugin")
    stand_in("lightning.pytorch", "Callback")
    stand_in("transformers", "TrainerCallback")
    app.add_role("plain", plain_role)
    app.connect("missing-reference", resolve_name)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    # Before sphinx collects the files that it is to copy.
    app.connect("doctree-read", outside_links, priority=400)
