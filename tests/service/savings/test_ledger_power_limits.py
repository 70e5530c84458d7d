"""What a job has saved where runs had other power limits than the default one."""

from __future__ import annotations

from typing import Any

import pytest
from service.jobs import spec
from service.savings.test_ledger import Job
from zeus_service.messages import PowerProfile
from zeus_service.savings import expected as expectation
from zeus_service.savings import ledger


def profile(**changes: Any) -> PowerProfile:
    points = [
        {"limit_w": 100, "energy_j": 20.0, "time_s": 0.30},
        {"limit_w": 200, "energy_j": 25.0, "time_s": 0.24},
        {"limit_w": 300, "energy_j": 30.0, "time_s": 0.21},
    ]
    fields = {
        "device_model": "Fake GPU",
        "driver": "1",
        "num_devices": 1,
        "batch_size": 32,
        "points": points,
        "chosen_w": 200,
        "selector": "zeus-cost",
        "eta_knob": 0.5,
        "max_power_w": 300.0,
        "search": "sweep",
        "measured_at": "2026-01-31T12:00:00Z",
    }
    return PowerProfile.model_validate({**fields, **changes})


def test_a_run_below_the_default_power_limit_counts_with_what_it_would_have_spent_there() -> None:
    job = Job(spec(eta_knob=0.5, max_power_w=300.0, policy="default"))
    job.ledger = ledger.with_power_profile(job.spec, job.ledger, profile())
    job.run(32, 1200.0, 8.4, limits_w=(300.0, 300.0))
    assert job.saved.mean == pytest.approx((0.0, 0.0, 0.0))
    job.run(32, 1000.0, 9.6, limits_w=(200.0, 300.0))
    assert job.expected.mean == pytest.approx((1200.0, 8.4, 0.5 * 1200 + 0.5 * 300 * 8.4))
    assert job.saved.mean[:2] == pytest.approx((200.0, -1.2))
    assert expectation.power_ratio(job.ledger) == pytest.approx((30 / 25, 0.21 / 0.24))


def with_stopped_runs(limit_w: float) -> Job:
    """A job whose default has run at a power limit, and was stopped early there."""
    job = Job(spec(eta_knob=0.5, max_power_w=300.0, policy="default"))
    job.ledger = ledger.with_power_profile(job.spec, job.ledger, profile())
    for energy_j in (1190.0, 1210.0):
        job.run(32, energy_j, 8.4, limits_w=(limit_w, 300.0))
    for _ in range(3):
        job.run(32, 1200.0, 8.4, "early_stopped", limits_w=(limit_w, 300.0))
    return job


@pytest.mark.parametrize(("limit_w", "factors"), [(300.0, (1.0, 1.0)), (200.0, (1.2, 0.875))])
def test_a_run_of_another_batch_size_does_not_change_the_limits_of_those_of_the_default(
    limit_w: float, factors: tuple[float, float]
) -> None:
    job, (energy_j, time_s, _) = with_stopped_runs(limit_w), with_stopped_runs(300.0).expected.mean
    before = job.expected
    assert before.mean[:2] == pytest.approx((energy_j * factors[0], time_s * factors[1]))
    assert before.mean[2] == pytest.approx(job.spec.cost(*before.mean[:2]))
    job.run(64, 700.0, 6.0, limits_w=(100.0, 300.0))
    assert job.expected.mean == before.mean


def test_an_era_that_ends_at_another_limit_keeps_the_expected_joules_per_second() -> None:
    job = with_stopped_runs(300.0)
    energy_j, time_s, _ = job.expected.mean
    for _ in range(4):
        job.run(64, 700.0, 6.0, limits_w=(300.0, 300.0))
    while not job.ledger["past"]:
        job.run(64, 1400.0, 12.0, limits_w=(100.0, 300.0))
    energy_then_j, time_then_s, _ = job.ledger["past"][0]["expected"]
    assert energy_then_j / time_then_s == pytest.approx(energy_j / time_s)


def test_a_profile_that_is_of_no_gpu_changes_nothing() -> None:
    job = Job(spec(policy="default"))
    points = [[100.0, 5e-324, 0.3], [300.0, 1e15, 0.2]]
    job.ledger = {**job.ledger, "profile": points}
    job.run(32, 1000.0, 10.0, limits_w=(100.0, 300.0))
    assert job.expected.mean[:2] == (1000.0, 10.0)


@pytest.mark.parametrize("limits_w", [(300.0, 300.0), (None, None)])
def test_a_profile_credits_nothing_to_runs_at_the_default_limit_or_at_an_unknown_one(
    limits_w: tuple[float, float] | tuple[None, None],
) -> None:
    job = Job(spec(policy="default"))
    job.ledger = ledger.with_power_profile(job.spec, job.ledger, profile(chosen_w=100))
    for energy_j in (1000.0, 1100.0):
        job.run(32, energy_j, 10.0, limits_w=limits_w)
    assert job.expected.mean[0] == pytest.approx(1050.0)
    assert job.saved.mean == pytest.approx((0.0, 0.0, 0.0))


def test_the_belief_about_an_untried_default_is_that_at_the_default_limit() -> None:
    at_default, below = (Job(spec(eta_knob=1.0, policy="information_directed")) for _ in range(2))
    for job, limits_w in ((at_default, (300.0, 300.0)), (below, (200.0, 300.0))):
        job.ledger = ledger.with_power_profile(job.spec, job.ledger, profile())
        for batch_size, energy_j in ((16, 100.0), (64, 50.0)) * 3:
            job.run(batch_size, energy_j, 5.0, limits_w=limits_w)
    assert at_default.expected.basis == below.expected.basis == "belief"
    assert below.expected.mean[0] == pytest.approx(1.2 * at_default.expected.mean[0])
    assert below.expected.mean[1] == pytest.approx(0.875 * at_default.expected.mean[1])


@pytest.mark.parametrize("changes", [{"batch_size": 64}, {"device_model": "Another GPU"}])
def test_profiles_of_other_batch_sizes_and_gpus_change_nothing(changes: dict[str, Any]) -> None:
    job = Job()
    assert ledger.with_power_profile(job.spec, job.ledger, profile(**changes)) == job.ledger
