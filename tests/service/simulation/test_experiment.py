"""Many replays, and what they cost."""

from __future__ import annotations

import pytest
from service.simulation import recorded
from zeus_service.bandit.outcomes import Result
from zeus_service.simulation.experiment import (
    Experiment,
    run_all,
    spent_over_oracle,
    tally,
)
from zeus_service.simulation.replay import Submission
from zeus_service.simulation.simulated_run import SimulatedTrial

WORKLOAD = recorded.workload()
SPEC = WORKLOAD.spec(policy="zeus", seed=1)
OVERLAPPING = tuple(Submission(10.0 * start, 10.0 * start + 25, 1.0) for start in range(10))
EXPERIMENTS = [
    Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), submissions)
    for seed in range(3)
    for submissions in (12, OVERLAPPING)
]

# 8: 0.5 x 400 J + 0.5 x 200 W x 5 s = 700 J an epoch at 100 W, 0.5 x 640 + 400 = 720 at 200 W.
ORACLE = 6 * 700.0


def test_two_processes_give_what_one_gives_in_the_same_order() -> None:
    assert list(run_all(EXPERIMENTS, jobs=2)) == list(run_all(EXPERIMENTS, jobs=1))


def trial(recurrence: int, batch_size: int, result: Result, cost: float) -> SimulatedTrial:
    return SimulatedTrial(recurrence, 1, batch_size, 100.0, "explore", result, 1, 2.0, 3.0, cost)


def test_a_replay_is_added_up() -> None:
    trials = [
        trial(0, 16, "converged", 100.0),
        trial(1, 32, "early_stopped", 30.0),
        trial(1, 8, "converged", 50.0),
        trial(40, 8, "not_converged", 7.0),
    ]
    added = tally(Experiment(WORKLOAD, SPEC, 41), trials)
    assert added.costs == (100.0, 80.0, *[0.0] * 38, 7.0)
    assert added.oracle_costs == pytest.approx([ORACLE] * 41)
    assert spent_over_oracle([added]).value == pytest.approx(187.0 / (41 * ORACLE))
    assert spent_over_oracle([added], 30).value == pytest.approx(180.0 / (30 * ORACLE))
    assert (added.energy_j, added.time_s) == (12.0, 8.0)
    # 16 at 200 W: 9 epochs of 3 s and 480 J.
    assert added.default_energy_j == pytest.approx(41 * 9 * 480.0)
    assert added.default_time_s == pytest.approx(41 * 9 * 3.0)
    assert (added.failed, added.unreached, added.none_left) == (2, 39, True)
    assert added.final == (16, 8)


def test_a_longer_submission_is_measured_against_a_longer_best_run() -> None:
    longer = (Submission(0.0, 1.0, 2.0), Submission(2.0, 3.0, 0.5))
    assert tally(Experiment(WORKLOAD, SPEC, longer), []).oracle_costs == pytest.approx(
        [2 * ORACLE, ORACLE / 2]
    )
