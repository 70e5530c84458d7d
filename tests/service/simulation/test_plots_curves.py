"""Regret, cost and choices at each recurrence."""

from __future__ import annotations

import numpy as np
import pytest
from service.simulation import recorded
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.plots import Curves, curves
from zeus_service.simulation.summary import tally

WORKLOAD = recorded.workload()


def replayed(*lengths: int) -> list[Curves]:
    experiments = [
        Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), length)
        for seed, length in enumerate(lengths)
    ]
    return curves([(experiment, experiment.run()) for experiment in experiments])


def test_the_regret_ends_at_the_cost_above_the_oracles() -> None:
    experiment = Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=0), 25)
    added = tally(experiment, experiment.run())
    (one,) = replayed(25)
    assert one.regret[0, -1] == pytest.approx((added.cost / added.oracle - 1) * 25)
    assert one.cost.mean() == pytest.approx(added.cost / added.oracle)


def test_every_recurrence_is_shared_out_among_the_batch_sizes() -> None:
    (one,) = replayed(25, 25, 10)
    assert one.chosen.shape == (3, 25)
    np.testing.assert_allclose(one.chosen.sum(axis=0), 1.0)
    assert one.chosen[:, 0].tolist() == [0.0, 1.0, 0.0]  # all start with the default, 16
    assert np.isnan(one.cost[2, 10:]).all()
    assert not np.isnan(one.cost[2, :10]).any()
