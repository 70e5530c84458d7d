"""A page of figures in one file, which needs neither a service nor a network."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from zeus_service.pages import assets
from zeus_service.pages.job_figures import FIGURES
from zeus_service.pages.plotting import Figure
from zeus_service.pages.templating import render


def page(job_id: str, figures: Mapping[str, Figure]) -> str:
    """The page of a job's figures, by their names in `FIGURES`."""
    return render(
        "standalone.html",
        job_id=job_id,
        now=time.time(),
        titles=FIGURES,
        # `</script>` in a text must not end the script.
        figures=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),
        css=assets.OWN["page.css"].decode(),
        scripts=[assets.plotly().decode(), assets.OWN["figures.js"].decode()],
    )
