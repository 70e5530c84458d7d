"""A page of figures in one file, which needs neither a service nor a network."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader

from zeus_service.pages.figures import FIGURES
from zeus_service.pages.format import FILTERS
from zeus_service.pages.plotting import PLOTLY, Figure

_STATIC = Path(__file__).parent / "static"


def page(job_id: str, figures: Mapping[str, Figure]) -> str:
    """The page of a job's figures, by their names in `FIGURES`."""
    environment = Environment(loader=PackageLoader("zeus_service.pages"), autoescape=True)
    environment.filters |= FILTERS
    return environment.get_template("standalone.html").render(
        job_id=job_id,
        now=time.time(),
        titles=FIGURES,
        # `</script>` in a text must not end the script.
        figures=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
        css=(_STATIC / "page.css").read_text(encoding="utf-8"),
        scripts=[each.read_text(encoding="utf-8") for each in (PLOTLY, _STATIC / "figures.js")],
    )
