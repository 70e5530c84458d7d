"""Curves over recurrences, and the page of figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from service.simulation import recorded
from zeus_service.simulation import plots
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.plots import Curves, curves

WORKLOAD = recorded.workload()


def replayed(*lengths: int) -> list[Curves]:
    experiments = [
        Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), length)
        for seed, length in enumerate(lengths)
    ]
    return curves([(experiment, experiment.run()) for experiment in experiments])


def test_the_page_shows_the_figures_and_loads_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    plots.write_page(page, replayed(25, 25))
    text = page.read_text()
    assert "letters on tiny" in text
    assert "Cumulative regret" in text
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)


def test_a_band_holds_the_middle_of_the_replays() -> None:
    cost = np.repeat(np.arange(1.0, 12.0)[:, None], 4, axis=1)
    one = Curves("w", "g", "p", [8], cost, np.cumsum(cost, axis=1), np.ones((1, 4)))
    band, mean = plots.figure([one]).data[2:4]
    assert list(mean.y) == [6.0] * 4
    assert list(band.y) == [10.0] * 4 + [2.0] * 4


def test_without_plotly_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(SimulationError, match="pip install plotly"):
        plots.require_plotly()


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"nowhere.*cannot be written"):
        plots.write_page(tmp_path / "nowhere" / "page.html", replayed(3))
