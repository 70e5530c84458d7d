"""The page of figures."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from service.simulation import recorded
from zeus_service.simulation import plots
from zeus_service.simulation.experiment import Experiment, Tally, spent_over_oracle

WORKLOAD = recorded.workload()


def replayed(*lengths: int) -> list[Tally]:
    return [
        Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), length).run()
        for seed, length in enumerate(lengths)
    ]


def test_the_page_shows_the_figures_and_loads_nothing() -> None:
    page = StringIO()
    plots.write_page(page, replayed(25, 25))
    text = page.getvalue()
    assert "letters on tiny" in text
    assert "cumulative regret" in text
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)


def test_replays_that_gave_up_are_left_out() -> None:
    page = StringIO()
    plots.write_page(page, [replace(each, none_left=True) for each in replayed(25)])
    assert "letters on tiny" not in page.getvalue()


def test_a_band_holds_the_middle_of_the_replays() -> None:
    regret = np.repeat(np.arange(0.0, 11.0)[:, None], 2, axis=1)
    costs = np.diff(regret, axis=1, prepend=0.0) + 1
    band, mean = plots.figure("", {"zeus": costs}).data
    assert list(mean.y) == [5.0] * 2
    assert list(band.y) == [9.0] * 2 + [1.0] * 2


def test_the_regret_ends_at_the_cost_above_the_oracles() -> None:
    tallies = replayed(25)
    _, mean = plots.figure("", {"zeus": plots.relative_costs(tallies)}).data
    assert mean.y[-1] == pytest.approx((spent_over_oracle(tallies).value - 1) * 25)


def test_a_shorter_replay_ends_earlier() -> None:
    costs = plots.relative_costs(replayed(25, 10))
    assert costs.shape == (2, 25)
    assert np.isnan(costs[1, 10:]).all()
    assert not np.isnan(costs[1, :10]).any()
