"""Curves over recurrences, and the page of figures."""

from __future__ import annotations

import re
from io import StringIO

import numpy as np
import pytest
from service.simulation import recorded
from zeus_service.simulation import plots
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.plots import Curves, curves
from zeus_service.simulation.summary import tally

WORKLOAD = recorded.workload()


def replayed(*lengths: int) -> list[Curves]:
    experiments = [
        Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), length)
        for seed, length in enumerate(lengths)
    ]
    return curves([tally(experiment, experiment.run()) for experiment in experiments])


def test_the_page_shows_the_figures_and_loads_nothing() -> None:
    page = StringIO()
    plots.write_page(page, replayed(25, 25))
    text = page.getvalue()
    assert "letters on tiny" in text
    assert "Cumulative regret" in text
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)


def test_a_band_holds_the_middle_of_the_replays() -> None:
    cost = np.repeat(np.arange(1.0, 12.0)[:, None], 4, axis=1)
    one = Curves("w", "g", "p", [8], cost, np.cumsum(cost, axis=1), np.ones((1, 4)))
    band, mean = plots.figure([one]).data[2:4]
    assert list(mean.y) == [6.0] * 4
    assert list(band.y) == [10.0] * 4 + [2.0] * 4


def test_the_regret_ends_at_the_cost_above_the_oracles() -> None:
    experiment = Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=0), 25)
    added = tally(experiment, experiment.run())
    (one,) = replayed(25)
    spent = sum(added.costs) / sum(added.oracle_costs)
    assert one.regret[0, -1] == pytest.approx((spent - 1) * 25)
    assert one.cost.mean() == pytest.approx(spent)


def test_every_recurrence_is_shared_out_among_the_batch_sizes() -> None:
    (one,) = replayed(25, 25, 10)
    assert one.chosen.shape == (3, 25)
    np.testing.assert_allclose(one.chosen.sum(axis=0), 1.0)
    assert one.chosen[:, 0].tolist() == [0.0, 1.0, 0.0]  # all start with the default, 16
    assert np.isnan(one.cost[2, 10:]).all()
    assert not np.isnan(one.cost[2, :10]).any()
