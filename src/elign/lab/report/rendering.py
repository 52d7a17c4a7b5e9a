"""HTML from the templates of this package; values are escaped, `Markup` is not."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_ENVIRONMENT = Environment(
    loader=PackageLoader("elign.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}


def prose(text: str) -> Markup:
    """Keep a number on one line with its sign or its deviation."""
    return escape(text).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


_ENVIRONMENT.filters["prose"] = prose


def render_page(**values: object) -> str:
    """Fill the template of a page."""
    return _ENVIRONMENT.get_template("page.html").render(values)


def render_part(name: str, /, *values: object) -> Markup:
    """Fill a macro of `parts.html`."""
    return Markup(getattr(_ENVIRONMENT.get_template("parts.html").module, name)(*values))  # noqa: S704  (escaped)


def read_template(name: str) -> Markup:
    """Read a file beside the templates; its text is not escaped."""
    text = (resources.files("elign.lab.report") / "templates" / name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  (a file of this package)
