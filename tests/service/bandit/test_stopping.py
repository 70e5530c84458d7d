"""When a run stops."""

from __future__ import annotations

from typing import Any

import pytest
from service.jobs import spec
from zeus_service.bandit.stopping import Decision, Report, decide

JOB = spec(eta_knob=0.25, target_metric=0.9, max_epochs=10)


FIRST: dict[str, Any] = {"max_power_w": 100.0, "previous_cost": 0.0, "cost_bound": None}


def report(cost: float, metric: float = 0.5) -> Report:
    """A report whose cost is the one given, all of it energy."""
    return Report(sequence=1, epoch=1, time_s=0.0, energy_j=4 * cost, metric=metric)


def ask(given: Report, **known: Any) -> Decision:
    return decide(JOB, given, **{**FIRST, **known})


def test_a_run_that_reaches_its_target_past_the_bound_is_not_thrown_away() -> None:
    assert ask(report(9.0, metric=0.95), cost_bound=5.0).outcome == "converged"


@pytest.mark.parametrize(
    ("cost", "outcome"), [(4.9, None), (5.0, None), (5.1, "early_stopped"), (9.0, "early_stopped")]
)
def test_a_run_stops_when_the_next_report_is_expected_past_the_bound(
    cost: float, outcome: str | None
) -> None:
    assert ask(report(cost), previous_cost=cost - 1.0, cost_bound=6.0).outcome == outcome


def test_a_counter_that_went_back_expects_nothing_less() -> None:
    assert ask(report(5.0), previous_cost=50.0, cost_bound=6.0).decision == "continue"
