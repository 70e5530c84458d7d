"""What a job has saved, counted by hand, and as a fold of its trials' ends."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies
from service.jobs import HARDWARE, spec
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.spec import MAX_AMOUNT, JobSpec
from zeus_service.savings.expected import Expected, Ledger
from zeus_service.savings.ledger import new_ledger
from zeus_service.savings.power import Profile

from benchmarks.savings import Ended, JobLedger

ETA_1 = spec(eta_knob=1.0)  # cost is energy; the default batch size is 32


class Job(JobLedger):
    """A job's ledgers, by default of one whose cost is its energy; `hardware` is the next run's."""

    default_limit_w = 300.0

    def __init__(
        self, spec: JobSpec = ETA_1, max_power_w: float = 100.0, profile: Profile = ()
    ) -> None:
        super().__init__(spec, profile)
        self.hardware = replace(HARDWARE, max_power_w=max_power_w)

    def run(
        self,
        batch_size: int,
        energy_j: float,
        time_s: float | None = None,
        outcome: Outcome = "converged",
        limit_w: float | None = None,
    ) -> None:
        """A trial; it takes a second for each ten joules, and the default limit is 300 W."""
        time_s = energy_j / 10 if time_s is None else time_s
        cost = self.spec.cost(energy_j, time_s, self.hardware.max_power_w)
        default_w = None if limit_w is None else self.default_limit_w
        spent = energy_j, time_s, cost
        end = Ended(batch_size, self.hardware, outcome, *spent, limit_w, default_w)
        self.end(end)

    @property
    def ledger(self) -> Ledger:
        return self.ledgers.get(self.hardware.key) or new_ledger()

    @property
    def expected(self) -> Expected:
        found = self.eras[-1].expected
        assert found is not None
        return found

    @property
    def saved_j(self) -> float:
        assert self.saved is not None
        return self.saved.energy_j.estimate


def test_a_meter_that_never_measured_gives_no_expectation() -> None:
    job = Job()
    job.run(32, 0.0, 10.0)
    assert job.saved is None


def test_runs_of_the_default_that_are_always_stopped_after_the_first_change_little() -> None:
    job = Job()
    job.run(32, 100.0)  # before there was a bound
    for _ in range(10):
        job.run(64, 40.0)
        job.run(32, 80.0, outcome="early_stopped")
    assert job.expected.energy_j == pytest.approx(100.0)


@pytest.mark.parametrize("bound", [80.0, 100.0, 130.0])
def test_expectations_are_right_where_runs_are_stopped(bound: float) -> None:
    """77, 50 and 19 % of runs cost more than these bounds. The first run has none."""
    found = []
    for seed in range(100):
        rng, job = np.random.default_rng(seed), Job()
        for _ in range(40):
            cost = 100 * rng.lognormal(sigma=0.3)
            if cost > bound and job.ledger["arms"]:
                job.run(32, bound, outcome="early_stopped")
            else:
                job.run(32, cost)
        if len(job.eras) == 1:
            found.append(job.expected.energy_j)
    assert len(found) > 70
    assert np.mean(found) == pytest.approx(100 * math.exp(0.3**2 / 2), rel=0.04)


RUNS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from([16, 32, 64]),
        strategies.floats(0, MAX_AMOUNT),
        strategies.floats(0, MAX_AMOUNT),
        strategies.sampled_from(["converged", "converged", "early_stopped", "lost"]),
    ),
    max_size=60,
)


@given(RUNS, strategies.sampled_from([0.0, 0.5, 1.0]))
def test_savings_are_recurrences_times_the_expectation_less_all_that_was_spent(
    runs: list[tuple[int, float, float, Outcome]], eta_knob: float
) -> None:
    job = Job(spec(eta_knob=eta_knob))
    for run in runs:
        job.run(*run)
    assert [era.number for era in job.eras] == list(range(1, len(job.eras) + 1))
    saved_s = 0.0
    for era in job.eras:
        ends = [end for end, number in job.trials if number == era.number]
        assert era.recurrences == sum(end.outcome == "converged" for end in ends)
        assert era.energy_j == pytest.approx(sum(end.energy_j for end in ends))
        assert era.cost == pytest.approx(sum(end.cost for end in ends))
        if era.expected:
            spent_s = sum(end.time_s for end in ends)
            saved_s += era.recurrences * era.expected.time_s - spent_s
    if job.saved:
        scale = sum(end.time_s for end, _ in job.trials) + abs(saved_s)
        assert job.saved.time_s.estimate == pytest.approx(saved_s, abs=1e-9 * scale)
        assert all(
            math.isfinite(x) for x in (job.saved.energy_j.estimate, job.saved.energy_j.error)
        )
    uncounted = [end for end, number in job.trials if number is None]
    assert all(end.outcome == "converged" and end.energy_j * end.time_s < 1e7 for end in uncounted)
    assert json.loads(json.dumps(job.ledger, allow_nan=False)) == job.ledger
