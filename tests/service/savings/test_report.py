"""Sums of what was saved, and their errors."""

from __future__ import annotations

from dataclasses import replace

from service.jobs import HARDWARE
from zeus_service.savings.expected import Expected
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import saved

ERA = Era(1, HARDWARE, 4, 300.0, 30.0, 5000.0, Expected(100.0, 10.0, 5.0, 1.0))


def test_the_errors_of_a_jobs_eras_add_up() -> None:
    later = replace(ERA, number=2, expected=Expected(50.0, 5.0, 2.0, 1.0))
    unknown = replace(ERA, number=3, expected=None)
    job = saved([ERA, later, unknown])
    assert job is not None
    assert job.energy_j.estimate == 4 * 100 - 300 + 4 * 50 - 300
    assert job.energy_j.error == 4 * 5 + 4 * 2


def test_nothing_is_said_to_have_cost_more_than_it_spent() -> None:
    unclear = replace(ERA, expected=Expected(100.0, 10.0, 250.0, 2.0))
    found = saved([unclear, unclear])
    assert found is not None
    assert (found.energy_j.low, found.energy_j.high) == (2 * -300.0, 2 * (100.0 + 4 * 250.0))
    assert (found.time_s.low, found.time_s.high) == (2 * (10.0 - 8.0), 2 * (10.0 + 8.0))
    assert found.energy_j.error == 2 * 4 * 250.0
