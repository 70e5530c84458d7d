"""Templates, read when this is imported: a worker's user may be unable to enter this folder."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from flask import g, request
from jinja2 import DictLoader, Environment, StrictUndefined

from zeus_service import __version__
from zeus_service.pages import assets, units
from zeus_service.pages.plotting import OUTCOMES
from zeus_service.pages.session import form_token


def _sources() -> dict[str, str]:
    folder = files("zeus_service.pages") / "templates"
    return {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir()}


_environment = Environment(
    loader=DictLoader(_sources()),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    name: getattr(units, name)
    for name in (
        "job_path",
        "joules",
        "saved_energy",
        "significant",
        "number",
        "seconds",
        "percent",
        "iso",
        "utc",
        "words",
        "runs",
    )
}
_environment.globals |= {
    "asset": assets.address,
    "version": __version__,
    "outcomes": tuple(OUTCOMES),
    "request": request,
    "session": lambda: g.get("session"),
    "form_token": lambda: form_token(g.session),
}


def render(template: str, **values: Any) -> str:
    """Render a template."""
    return _environment.get_template(template).render(**values)
