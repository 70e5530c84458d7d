"""Eras: what a job has saved before and after it became dearer or cheaper."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from service.jobs import HARDWARE
from service.savings.test_ledger import Job
from zeus_service.savings.expected import CHANGE_NOISE


def learned(limit_w: float | None = 300.0) -> Job:
    """A job whose default costs 100 J and whose batch size of 64 costs 80 J at a power limit."""
    job = Job()
    for factor in (0.98, 1.02, 1.0, 0.98, 1.02):
        job.run(32, 100.0 * factor, limit_w=300.0)
        job.run(64, 80.0 * factor, limit_w=limit_w)
    return job


def with_change(job: Job, factor: float, runs: int = 30, limit_w: float | None = 300.0) -> Job:
    """The job after its cost has changed by a factor, while 64 ran."""
    for number in range(runs):
        job.run(64, 80.0 * factor * (1.02 if number % 2 else 0.98), limit_w=limit_w)
    assert len(job.eras) == 2
    return job


@pytest.mark.parametrize("stops", [0, 2])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_job_that_has_changed_is_compared_with_what_its_default_costs_now(
    factor: float, stops: int
) -> None:
    job = learned()
    for _ in range(stops):
        job.run(64, 100.0, outcome="early_stopped")
    with_change(job, factor)
    first, second = job.eras
    assert first.expected is not None
    assert first.expected.energy_j == pytest.approx(100.0)
    assert first.recurrences + second.recurrences == 40
    assert second.recurrences >= 27
    # The default has not run since: it is expected to have changed as much as the other.
    # The first runs after the change count before it.
    assert job.expected.energy_j == pytest.approx(100.0 * factor, rel=0.35)
    assert abs(job.expected.energy_j - 100.0 * factor) < job.expected.energy_error_j
    before = first.expected.energy_error_j / first.expected.energy_j
    assert job.expected.energy_error_j / job.expected.energy_j > before
    job.run(32, 100.0 * factor, limit_w=300.0)
    assert job.expected.energy_j == 100.0 * factor


def test_the_row_of_an_era_stays_as_it_was_when_the_next_one_began() -> None:
    job = learned()
    while len(job.eras) == 1:
        before = job.eras[0]
        job.run(64, 160.0)
    assert job.eras[0] == before
    assert job.eras[1].recurrences == 1
    assert job.eras[1].energy_j == 160.0
    assert [number for _, number in job.trials].count(2) == 1
    first = job.eras[0]
    with_change(job, 2.0)
    assert job.eras[0] == first


def test_one_surprise_alone_is_not_a_change() -> None:
    job = learned()
    job.run(64, 8000.0)
    job.run(64, 80.0)
    assert len(job.eras) == 1


def test_a_young_job_whose_cheapest_batch_size_began_with_luck_has_not_changed() -> None:
    job = Job()
    for size, cost in ((32, 19.2), (64, 12.1), (16, 12.4), (16, 10.9), (16, 14.0)):
        job.run(size, cost)
    for cost in (5.1, 7.2, 8.0, 9.9, 8.7, 9.7, 9.4):
        job.run(8, cost)
    assert len(job.eras) == 1


@pytest.mark.parametrize("limits_w", [(300.0, 200.0), (200.0, 300.0), (300.0, None)])
def test_what_another_power_limit_saves_is_not_a_change_of_the_default(
    limits_w: tuple[float | None, float | None],
) -> None:
    before_w, since_w = limits_w
    job = with_change(learned(limit_w=before_w), 0.5, limit_w=since_w)
    assert job.expected.energy_j == pytest.approx(100.0)  # as in the era before


def test_a_batch_size_whose_power_limit_has_changed_has_no_part_in_the_change() -> None:
    job = learned()
    for _ in range(5):
        job.run(16, 70.0, limit_w=300.0)
    with_change(job, 2.0)
    wanted = job.expected.energy_j
    for _ in range(3):
        job.run(16, 500.0, limit_w=200.0)
    assert job.expected.energy_j == pytest.approx(wanted, rel=1e-6)


def test_a_change_without_an_expectation_waits() -> None:
    job = Job()
    for factor in (0.98, 1.02) * 10 + (2.0,) * 10:
        job.run(64, 80.0 * factor)
    assert [era.recurrences for era in job.eras] == [30]
    assert job.ledger["arms"]["64"]["runs"] == 30
    job.run(32, 100.0)
    assert job.saved is not None


def test_the_farther_a_batch_size_is_from_the_default_the_less_its_change_says() -> None:
    errors = []
    for size in (64, 8):
        job = Job()
        for factor in (0.98, 1.02) * 5:
            job.run(32, 100.0 * factor)
            job.run(size, 80.0 * factor)
        for _ in range(30):
            job.run(size, 160.0)
        errors.append(job.expected.energy_error_j / job.expected.energy_j)
    near, far = (math.log1p(error) for error in errors)
    assert far > near > 1.96 * CHANGE_NOISE  # one octave
    assert far > 1.96 * CHANGE_NOISE * 2  # two octaves


def test_a_new_era_knows_the_noise_and_the_power_profile_of_the_one_before() -> None:
    job = Job(profile=[(200.0, 25.0, 0.24), (300.0, 30.0, 0.21)])
    for factor in (0.6, 1.5) * 40:
        job.run(32, 100.0 * factor, limit_w=200.0)
    while len(job.eras) == 1:
        job.run(32, 900.0, limit_w=200.0)
    assert job.expected.energy_j == pytest.approx(900.0 * 30 / 25)
    deviation = float(np.std(np.log([0.6, 1.5])))
    relative = math.log1p(job.expected.energy_error_j / job.expected.energy_j)
    assert relative == pytest.approx(2 * deviation, rel=0.25)


def test_a_ledger_does_not_grow_with_eras() -> None:
    job, cost = Job(), 100.0
    sizes = []
    for _ in range(20):
        cost *= 1.5
        for number in range(10):
            job.run(32, cost * (1.01 if number % 2 else 0.99))
        sizes.append(len(str(job.ledger)))
    assert len(job.eras) > 10
    assert max(sizes[3:]) < 1.2 * min(sizes[3:])
    spent = sum(era.energy_j for era in job.eras)
    assert spent == pytest.approx(float(np.sum(1000 * 1.5 ** np.arange(1, 21))))


OTHER = replace(HARDWARE, device_model="Other GPU", max_power_w=400.0)


def moved(job: Job, factor: float, *sizes: int, limit_w: float | None = 600.0) -> Job:
    """The job after runs on other hardware, whose default limit is 600 W, where all costs more."""
    job.hardware, job.default_limit_w = OTHER, 600.0
    for size in sizes:
        cost = {16: 90.0, 32: 100.0, 64: 80.0}[size]
        job.run(size, cost * factor, limit_w=limit_w)
    return job


def test_after_a_move_the_expectation_is_carried_over_from_the_hardware_that_is_known() -> None:
    job = moved(learned(), 3.0, 64)
    first, second = job.eras
    assert (first.hardware, second.hardware) == (HARDWARE, OTHER)
    assert first.expected is not None
    assert job.expected.energy_j == pytest.approx(300.0, rel=0.02)
    before = first.expected.energy_error_j / first.expected.energy_j
    relative = job.expected.energy_error_j / job.expected.energy_j
    assert before < relative < 0.5
    assert job.saved_j == pytest.approx(10 * 100 - 900 + 300 - 240, rel=0.1)
    moved(job, 3.0, 32)
    assert job.expected.energy_j == 300.0


def test_after_a_move_nothing_is_expected_until_a_batch_size_has_converged_on_both() -> None:
    job = moved(learned(), 3.0, 16)
    assert job.eras[-1].expected is None
    assert job.saved_j == pytest.approx(100.0)  # of the first hardware alone
    job.hardware, job.default_limit_w = HARDWARE, 300.0
    job.run(16, 90.0, limit_w=300.0)  # which says something there
    assert job.eras[1].expected is not None
    assert job.eras[1].expected.energy_j == pytest.approx(300.0, rel=0.02)


def test_after_a_move_power_limits_are_compared_as_shares_of_the_default_limit() -> None:
    half_on_both = moved(learned(limit_w=150.0), 3.0, 64, limit_w=300.0)
    assert half_on_both.expected.energy_j == pytest.approx(300.0, rel=0.02)
    assert moved(learned(limit_w=150.0), 3.0, 64, limit_w=600.0).eras[-1].expected is None


def test_a_default_that_was_stopped_on_other_hardware_is_expected_as_before() -> None:
    job = moved(learned(), 3.0, 64)
    expected = job.eras[-1].expected
    job.run(32, 1.0, outcome="early_stopped")
    assert expected is not None
    assert job.eras[-1].expected == expected
