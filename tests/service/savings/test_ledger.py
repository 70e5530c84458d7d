"""What a job has saved, counted by hand, and as a fold of its events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies
from service.jobs import spec
from zeus_service.bandit import fold as history
from zeus_service.bandit.fold import Event
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import Choice, State
from zeus_service.bandit.spec import MAX_AMOUNT, JobSpec
from zeus_service.savings import expected as expectation
from zeus_service.savings import ledger, lognormal
from zeus_service.savings.expected import Expectation, Ledger
from zeus_service.savings.ledger import Saved

ETA_1 = spec(eta_knob=1.0, policy="default")  # cost is energy


class Job:
    """A job's ledger and its policy's state, which advance together."""

    def __init__(self, spec: JobSpec = ETA_1) -> None:
        self.spec = spec
        self.ledger: Ledger = ledger.new_ledger()
        self.state: State = history.fold(spec, [])
        self.trials = 0
        self.events: list[Event] = []

    def run(
        self,
        batch_size: int,
        energy_j: float,
        time_s: float,
        outcome: Outcome = "converged",
        limits_w: tuple[float | None, float | None] = (None, None),
    ) -> int:
        """A trial from its start to its end, with the limit in force; its number."""
        self.trials += 1
        choice = Choice(batch_size, "exploit")
        cost = self.spec.cost(energy_j, time_s)
        self.apply(Event("started", self.trials, choice))
        self.apply(Event("ended", self.trials, choice, outcome, cost, energy_j, time_s, *limits_w))
        return self.trials

    def apply(self, event: Event) -> None:
        self.ledger = ledger.applied(self.spec, self.ledger, self.state, event)
        self.state = history.apply(self.spec, self.state, event)
        self.events.append(event)

    @property
    def expectation(self) -> Expectation | None:
        return expectation.expectation(self.spec, self.ledger, self.state)

    @property
    def expected(self) -> Expectation:
        assert self.expectation is not None
        return self.expectation

    @property
    def saved(self) -> Saved:
        saved = ledger.saved(self.ledger, self.expectation)
        assert saved is not None
        return saved


def test_a_recurrence_saves_the_mean_of_the_default_less_what_it_spent() -> None:
    job = Job()
    for energy_j, time_s in ((90.0, 9.0), (100.0, 10.0), (110.0, 11.0)):
        job.run(32, energy_j, time_s)
    job.run(64, 70.0, 6.0)
    assert ledger.recurrences(job.ledger) == 4
    assert ledger.spent(job.ledger) == pytest.approx((370.0, 36.0, 370.0))
    assert job.expected.mean == pytest.approx((100.0, 10.0, 100.0))
    assert job.saved.mean == pytest.approx((30.0, 4.0, 30.0))


def test_failed_and_lost_tries_count_as_spent_by_the_recurrence() -> None:
    job = Job()
    for _ in range(3):
        job.run(32, 100.0, 10.0)
    outcomes: tuple[Outcome, ...] = ("early_stopped", "out_of_memory", "lost", "errored")
    for outcome in outcomes:
        job.run(128, 25.0, 2.0, outcome)
    assert ledger.recurrences(job.ledger) == 3
    assert job.saved.mean == pytest.approx((-100.0, -8.0, -100.0))  # negative while it explores
    job.run(64, 60.0, 6.0)
    assert job.saved.mean == pytest.approx((-60.0, -4.0, -60.0))


def test_a_job_that_always_runs_the_default_has_saved_nothing_within_its_band() -> None:
    job = Job()
    for energy_j in (90.0, 105.0, 97.0, 130.0):
        job.run(32, energy_j, energy_j / 10)
    assert job.saved.mean == pytest.approx((0.0, 0.0, 0.0))
    assert min(job.saved.error) > 0


def test_a_revived_trial_counts_once_with_all_that_it_has_spent() -> None:
    job = Job()
    choice = Choice(32, "exploit")
    job.apply(Event("started", 1, choice))
    job.apply(Event("ended", 1, choice, "lost", 40.0, 40.0, 4.0))
    assert ledger.spent(job.ledger) == (40.0, 4.0, 40.0)
    job.apply(Event("revived", 1, choice, None, 40.0, 40.0, 4.0))
    assert ledger.spent(job.ledger) == (0.0, 0.0, 0.0)
    job.apply(Event("ended", 1, choice, "converged", 100.0, 100.0, 10.0))
    assert ledger.spent(job.ledger) == (100.0, 10.0, 100.0)
    assert ledger.recurrences(job.ledger) == 1


def test_the_error_is_students_with_the_noise_of_all_batch_sizes() -> None:
    job = Job()
    for energy_j in (100.0, 104.0, 98.0):
        job.run(32, energy_j, 10.0)
    for energy_j in (70.0, 73.0):
        job.run(64, energy_j, 7.0)
    logs = [np.log([100.0, 104.0, 98.0]), np.log([70.0, 73.0])]
    squares = sum(float(((log - log.mean()) ** 2).sum()) for log in logs)
    degrees = 3 + expectation.PRIOR_DEGREES
    noise = math.sqrt((squares + expectation.PRIOR_DEGREES * expectation.PRIOR_NOISE**2) / degrees)
    mean = 302 / 3
    wanted = math.expm1(lognormal.t_quantile(degrees) * noise / math.sqrt(3)) * mean
    assert job.expected.error[0] == pytest.approx(wanted)
    assert job.saved.error[0] == pytest.approx(5 * wanted)


def test_without_a_run_of_the_default_the_policys_belief_stands_in_with_its_uncertainty() -> None:
    job = Job(spec(eta_knob=1.0, policy="information_directed"))
    for _ in range(4):
        job.run(16, 100.0, 5.0)
        job.run(64, 50.0, 4.0)
    assert job.expected.basis == "belief"
    energy, time_s, cost = job.expected.mean
    assert energy == cost
    assert 40 < cost < 100
    assert time_s / cost == pytest.approx(5 / 100)  # the ratio of the nearest batch size
    assert job.expected.error[1] / time_s > job.expected.error[2] / cost > 0.05


def test_a_run_that_was_stopped_early_counts_with_what_it_would_have_spent_in_all() -> None:
    job = Job()
    for energy_j in (90.0, 110.0):
        job.run(32, energy_j, energy_j / 10)
    before = job.expected
    job.run(32, 80.0, 8.0, "early_stopped")  # stopped short of the mean, it would have cost more
    energy_j, time_s, cost = job.expected.mean
    assert 100 < energy_j < 110
    assert (10 * time_s, cost) == pytest.approx((energy_j, energy_j))
    job.run(32, 200.0, 20.0, "early_stopped")
    assert (4 * job.expected.mean[0] - 3 * energy_j) > 200
    assert before.mean[0] == pytest.approx(100.0)
    assert ledger.spent(job.ledger)[0] == 480.0  # what it has spent is what was spent


def test_a_run_that_was_stopped_early_narrows_the_band_by_the_part_of_it_that_was_seen() -> None:
    job = Job()
    for energy_j in (90.0, 100.0, 110.0):
        job.run(32, energy_j, energy_j / 10)
    job.run(32, 95.0, 9.5, "early_stopped")
    fit, (deviation, _, _) = expectation.fitted(job.ledger)
    assert 3 < fit.sizes["32"] < 4
    wanted = math.expm1(lognormal.t_quantile(fit.degrees) * deviation / math.sqrt(fit.sizes["32"]))
    assert job.expected.error[0] == pytest.approx(wanted * job.expected.mean[0])


def test_a_run_that_was_stopped_at_once_changes_neither_the_expectation_nor_its_band() -> None:
    job = Job()
    for energy_j in (90.0, 110.0):
        job.run(32, energy_j, energy_j / 10)
    before = job.expected
    job.run(32, 1.0, 0.1, "early_stopped")
    assert job.expected.error == pytest.approx(before.error, rel=0.01)
    assert job.expected.mean == pytest.approx(before.mean, rel=0.01)


def test_what_a_stopped_run_would_have_spent_has_the_ratios_of_the_runs_that_converged() -> None:
    job = Job()
    for energy_j in (99.0, 101.0):
        job.run(32, energy_j, 10.0)
    job.run(32, 100.0, 10.0, "early_stopped")
    job.run(32, 100.0, 20.0, "early_stopped")
    energy_j, time_s, _ = job.expected.mean
    of_stopped = 4 * energy_j - 200
    assert of_stopped > 200
    assert 4 * time_s == pytest.approx(2 * 10 + of_stopped * 0.1, rel=1e-4)


@pytest.mark.parametrize("at_once", [(10.0, 1.0), (0.001, 1.0), (1e-9, 10.0), (5e-324, 10.0)])
def test_a_run_that_was_stopped_at_once_says_nothing_beside_one_that_was_stopped_late(
    at_once: tuple[float, float],
) -> None:
    late, both = Job(), Job()
    for job in (late, both):
        for energy_j in (98.0, 100.0, 102.0):
            job.run(32, energy_j, energy_j / 10)
        job.run(32, 100.0, 10.0, "early_stopped")
    both.run(32, *at_once, "early_stopped")
    assert both.expected.mean == pytest.approx(late.expected.mean, rel=0.01)
    assert both.expected.error == pytest.approx(late.expected.error, rel=0.01)


@pytest.mark.parametrize("at_once", [(), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)])
@pytest.mark.parametrize("bounds", [(13.0, 130.0), (50.0, 130.0), (67.0, 134.0, 134.0)])
def test_expectations_are_right_where_runs_are_stopped_at_different_costs(
    bounds: tuple[float, ...], at_once: tuple[float, ...]
) -> None:
    """The bound moves with the belief, and doubles after stops."""
    means, held = [], []
    for seed in range(100):
        rng, job = np.random.default_rng(seed), Job()
        job.run(32, 100.0, 10.0)
        for cost in at_once:
            job.run(32, cost, cost / 10, "early_stopped")
        for number in range(24):
            cost, bound = 100 * rng.lognormal(sigma=0.3), bounds[number % len(bounds)]
            if cost > bound:
                job.run(32, bound, bound / 10, "early_stopped")
            else:
                job.run(32, cost, cost / 10)
        if not job.ledger["past"]:
            truth = 100 * math.exp(0.3**2 / 2)
            means.append(job.expected.mean[2] / truth)
            held.append(abs(job.expected.mean[2] - truth) <= job.expected.error[2])
    assert len(held) > 80
    assert np.mean(means) == pytest.approx(1.0, abs=0.02)
    assert 0.90 <= np.mean(held) <= 0.98


def test_stopped_runs_take_bounded_space_and_say_as_much_as_each_by_itself() -> None:
    job, costs = Job(), [90.0, 110.0] * 20
    for cost in costs:
        job.run(32, cost, cost / 10)
    bounds = np.random.default_rng(0).uniform(60, 120, size=40).tolist()
    for bound in bounds:
        job.run(32, bound, bound / 10, "early_stopped")
    assert not job.ledger["past"]
    stops = job.ledger["stops"]["32"]
    assert len(stops) == ledger.MAX_STOP_GROUPS
    assert sum(number for number, _ in stops) == 40
    assert sum(number * log for number, log in stops) == pytest.approx(sum(map(math.log, bounds)))
    logs = np.log(costs)
    each = lognormal.Sample(40, logs.mean(), [(1, math.log(bound)) for bound in bounds])
    squares = 40 * logs.var() + expectation.PRIOR_DEGREES * expectation.PRIOR_NOISE**2
    exact = lognormal.fit({"32": each}, squares, 39 + expectation.PRIOR_DEGREES)
    fit, _ = expectation.fitted(job.ledger)
    assert fit.means["32"] == pytest.approx(exact.means["32"], abs=0.05 * exact.deviation)
    assert fit.deviation == pytest.approx(exact.deviation, rel=0.02)
    assert fit.sizes["32"] == pytest.approx(exact.sizes["32"], rel=0.02)


def test_runs_that_were_stopped_at_one_cost_are_one_group() -> None:
    job = Job()
    job.run(32, 100.0, 10.0)
    for number in range(300):
        job.run(32, 80.0 + 0.1 * (number % 2), 8.0, "early_stopped")
    ((number, log_cost),) = job.ledger["stops"]["32"]
    assert (number, log_cost) == (300, pytest.approx(math.log(80.05), abs=1e-5))


def test_what_stopped_runs_would_have_spent_is_estimated_with_all_that_is_known_by_now() -> None:
    """The noise was not known when they were stopped."""
    first, stopped = (32, 100.0, 10.0), [(32, 120.0, 12.0, "early_stopped")] * 3
    others = [(64, energy_j, 5.0) for energy_j in (40.0, 70.0, 50.0, 90.0, 45.0)]
    early, late = Job(), Job()
    for run in (first, *stopped, *others):
        early.run(*run)
    for run in (first, *others, *stopped):
        late.run(*run)
    assert early.expected.mean == pytest.approx(late.expected.mean)
    assert early.expected.error == pytest.approx(late.expected.error)


@pytest.mark.parametrize("policy", ["information_directed", "zeus"])
def test_a_default_that_never_converges_has_no_expectation(policy: str) -> None:
    job = Job(spec(policy=policy))
    for _ in range(3):
        job.run(32, 500.0, 50.0, "not_converged")
        job.run(64, 100.0, 10.0)
    assert job.expectation is None
    assert ledger.saved(job.ledger, job.expectation) is None


def test_a_ledger_from_before_limits_were_reported_keeps_its_sums() -> None:
    job = Job()
    for energy_j in (90.0, 110.0):
        job.run(32, energy_j, 10.0)
    was = {name: part for name, part in job.ledger.items() if name not in ("profile", "limits")}
    assert ledger.checked({**was, "power": None}) == job.ledger
    power = {"after": 1, "energy": 1.2, "time": 0.9}
    job.ledger = ledger.checked({**was, "power": power})
    job.run(32, 100.0, 10.0, limits_w=(200.0, 300.0))
    assert job.saved.mean[0] == pytest.approx(0.0)


def test_in_a_ledger_from_before_stopped_runs_were_counted_each_is_whole() -> None:
    job = Job()
    for energy_j in (90.0, 110.0):
        job.run(32, energy_j, 10.0)
    was = {name: part for name, part in job.ledger.items() if name != "stops"}
    default = {"count": 2, "mean": was["default"]["mean"], "stopped_per_cost": [1.0, 0.1, 1.0]}
    assert ledger.checked({**was, "default": default}) == job.ledger


@pytest.mark.parametrize("changes", [{"cost": 0.0}, {"mean": [0.0] * 3, "cost": None}])
def test_a_default_that_has_converged_without_a_cost_is_damage(changes: dict[str, Any]) -> None:
    job = Job()
    job.run(32, 100.0, 10.0)
    with pytest.raises(ValueError, match="without a cost"):
        ledger.checked({**job.ledger, "default": {**job.ledger["default"], **changes}})


def test_a_damaged_default_that_has_not_converged_stops_no_run() -> None:
    job = Job()
    job.run(32, 100.0, 10.0)
    no_run = ledger.new_ledger()["default"]
    job.ledger = ledger.checked({**job.ledger, "default": no_run})
    job.run(32, 120.0, 12.0, "early_stopped")
    assert job.expectation is None
    job.run(32, 100.0, 10.0)
    assert ledger.checked(job.ledger) == job.ledger


@pytest.mark.parametrize("stop", [[-1, 0.0], [10**400, 0.0], [1, 800.0], [1, -1e308]])
def test_stopped_runs_that_no_reports_can_have_made_are_damage(stop: list[float]) -> None:
    job = Job()
    job.run(32, 90.0, 10.0)
    with pytest.raises(ValueError, match=r"stops\.32"):
        ledger.checked({**job.ledger, "stops": {"32": [stop]}})


def test_the_ledger_of_runs_with_nothing_in_common_can_be_read_again() -> None:
    job = Job()
    job.run(32, 1e-9, MAX_AMOUNT)
    for _ in range(1000):
        job.run(32, MAX_AMOUNT, MAX_AMOUNT, "early_stopped")
    job.run(64, 1.0, 1.0)
    assert job.ledger["before"]
    assert ledger.checked(job.ledger) == job.ledger


def test_a_meter_that_counts_nothing_gives_no_expectation() -> None:
    job = Job()
    job.run(32, 0.0, 10.0)
    assert job.expectation is None
    assert ledger.spent(job.ledger) == (0.0, 10.0, 0.0)


RUNS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from([16, 32, 64]),
        strategies.floats(0, MAX_AMOUNT),
        strategies.floats(0, MAX_AMOUNT),
        strategies.sampled_from(["converged", "early_stopped", "lost", "interrupted"]),
    ),
    max_size=40,
)


@given(RUNS)
def test_savings_are_recurrences_times_the_expectation_less_all_that_was_spent(
    runs: list[tuple[int, float, float, Outcome]],
) -> None:
    job = Job(spec(eta_knob=1.0))
    for run in runs:
        job.run(*run)
    assert ledger.recurrences(job.ledger) == sum(run[3] == "converged" for run in runs)
    assert ledger.spent(job.ledger)[0] == pytest.approx(sum(run[1] for run in runs))
    assert ledger.checked(job.ledger) == job.ledger
    if job.expectation is not None and not job.ledger["past"]:
        n = ledger.recurrences(job.ledger)
        wanted = n * job.expectation.mean[1] - sum(run[2] for run in runs)
        assert job.saved.mean[1] == pytest.approx(wanted)
    if job.expectation is not None:
        assert all(map(math.isfinite, (*job.saved.mean, *job.saved.error)))
