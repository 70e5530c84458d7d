"""Eras: what a job has saved before and after it became dearer or cheaper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from service.jobs import spec
from service.savings.test_ledger import Job
from zeus_service.savings import ledger


def test_a_job_that_has_become_dearer_is_compared_with_what_its_default_cost_before() -> None:
    job = Job(spec(eta_knob=1.0, policy="information_directed"))
    for _ in range(5):
        job.run(32, 100.0, 10.0)
        job.run(64, 80.0, 8.0)
    assert job.saved.mean[0] == pytest.approx(100.0)
    for _ in range(30):
        job.run(64, 160.0, 16.0)
    (before,) = job.ledger["past"]
    assert before["expected"] == pytest.approx([100.0, 10.0, 100.0])
    # The default has not run since: it is expected to have become as much dearer as the others.
    # The first runs after the change count before it.
    assert 150 < job.expected.mean[0] < 200 < job.expected.mean[0] + job.expected.error[0]
    assert job.expected.carried
    assert job.expected.error[0] / job.expected.mean[0] > before["error"][0] / 100
    for _ in range(3):
        job.run(32, 200.0, 20.0)
    assert job.expected.basis == "runs"
    assert job.expected.mean == pytest.approx((200.0, 20.0, 200.0))
    was = ledger.expected_at(job.ledger, before["last_trial"], job.expected)
    assert was.mean == pytest.approx((100.0, 10.0, 100.0))


def in_a_second_era(
    limit_w: float = 300.0, first_limit_w: float | None = 300.0, runs: int = 40
) -> Job:
    """A job whose cost has halved, `runs` runs ago, and whose default has not run since."""
    job = Job(spec(eta_knob=1.0, policy="zeus"))
    job.run(32, 95.0, 10.0, limits_w=(300.0, 300.0))
    job.run(64, 76.0, 8.0, limits_w=(first_limit_w, 300.0))
    for energy_j in (105.0, 95.0, 105.0, 95.0, 105.0, 100.0):
        job.run(32, energy_j, 10.0, limits_w=(300.0, 300.0))
        job.run(64, energy_j * 0.8, 8.0, limits_w=(300.0, 300.0))
    for number in range(runs):
        job.run(64, 41.0 if number % 2 else 39.0, 4.0, limits_w=(limit_w, 300.0))
    assert len(job.ledger["past"]) == 1
    assert job.ledger["default"]["count"] == 0
    return job


def test_errors_that_were_carried_over_from_an_era_add_up_with_its_own() -> None:
    job = in_a_second_era()
    (before,) = job.ledger["past"]
    assert job.expected.mean[0] == pytest.approx(50.0, rel=0.2)
    now = job.ledger["recurrences"] * job.expected.error[0]
    assert job.saved.error[0] == pytest.approx(before["recurrences"] * before["error"][0] + now)
    assert job.ledger == ledger.checked(job.ledger)


def test_what_a_lower_power_limit_saved_is_no_change_of_the_default() -> None:
    job = in_a_second_era(limit_w=200.0)
    assert job.expected.basis == "belief"
    assert job.expected.mean[0] + job.expected.error[0] > 100


def test_one_run_at_another_power_limit_does_not_keep_an_era_from_being_carried_over() -> None:
    job = in_a_second_era(first_limit_w=240.0)  # a run that searched for the limit
    assert job.expected.carried
    assert job.expected.mean[0] == pytest.approx(50.0, rel=0.2)


def test_what_a_lower_power_limit_saves_later_in_an_era_is_no_change_of_the_default() -> None:
    job = in_a_second_era(runs=6)
    assert job.expected.carried
    for _ in range(12):
        job.run(64, 36.0, 4.0, limits_w=(200.0, 300.0))
    assert len(job.ledger["past"]) == 1
    assert job.expected.basis == "belief"


def test_a_run_without_a_power_limit_leaves_the_mean_of_the_others() -> None:
    job = in_a_second_era()
    job.run(64, 40.0, 4.0)
    assert job.expected.carried


def test_eras_with_a_run_without_a_power_limit_each_are_compared_by_the_others() -> None:
    job = in_a_second_era(limit_w=200.0, first_limit_w=None)
    job.run(64, 40.0, 4.0)
    assert job.expected.basis == "belief"


def over_two_eras(
    before: Sequence[tuple[int, int, float]], since: Sequence[tuple[int, int, float]]
) -> Job:
    """A job that has become twice as dear, with so many runs of batch sizes at power limits."""
    job = Job(spec(eta_knob=1.0, policy="zeus"))
    for energy_j in (95.0, 105.0, 100.0):
        job.run(32, energy_j, 10.0, limits_w=(300.0, 300.0))
    for energy_j, settings in ((80.0, before), (160.0, since)):
        for batch_size, runs, limit_w in settings:
            for number in range(runs):
                noise = 1.02 if number % 2 else 0.98
                job.run(batch_size, noise * energy_j, 8.0, limits_w=(limit_w, 300.0))
    assert len(job.ledger["past"]) == 1
    return job


def test_a_limit_for_each_batch_size_that_stays_carries_the_era_before_over() -> None:
    job = over_two_eras([(16, 20, 250.0), (64, 30, 175.0)], [(64, 60, 175.0)])
    assert job.expected.carried
    assert job.expected.mean[0] == pytest.approx(200.0, rel=0.2)


def test_power_limits_that_batch_sizes_exchange_are_no_change_of_the_default() -> None:
    settings = [(16, 40, 200.0), (64, 40, 300.0)]
    job = over_two_eras([(16, 20, 300.0), (64, 20, 200.0)], settings)
    assert job.expected.basis == "belief"


def test_a_batch_size_whose_power_limit_has_changed_has_no_part_in_the_change() -> None:
    before, settings = [(16, 20, 300.0), (64, 20, 175.0)], [(64, 60, 175.0)]
    of_one = over_two_eras(before, settings)
    for _ in range(10):
        of_one.run(16, 500.0, 8.0, limits_w=(200.0, 300.0))
    assert of_one.expected.carried
    assert of_one.expected.mean[0] == pytest.approx(200.0, rel=0.2)


def test_a_ledger_without_the_batch_sizes_of_the_era_before_expects_what_it_did() -> None:
    job = in_a_second_era()
    was = {name: part for name, part in job.ledger.items() if name != "before"}
    was["arms"] = {size: arm[:4] for size, arm in was["arms"].items()}
    was["past"] = [{n: v for n, v in era.items() if n != "carried"} for era in was["past"]]
    job.ledger = ledger.checked(was)
    assert job.expected.basis == "belief"
    assert job.expected.mean[0] + job.expected.error[0] > 100
    for _ in range(60):
        job.run(64, 80.0, 8.0, limits_w=(300.0, 300.0))
    assert len(job.ledger["past"]) == 2
    first, second = (era["recurrences"] * era["error"][0] for era in job.ledger["past"])
    now = job.ledger["recurrences"] * job.expected.error[0]
    assert job.saved.error[0] == pytest.approx(math.hypot(first, second + now))


def test_a_ledger_with_batch_sizes_of_an_era_before_has_that_era() -> None:
    with pytest.raises(ValueError, match="no such era"):
        ledger.checked({**in_a_second_era().ledger, "past": []})


def test_an_era_begins_with_a_run_that_converged() -> None:
    job = Job(spec(eta_knob=1.0, policy="information_directed"))
    for energy_j in (95.0, 105.0) * 3:
        job.run(32, energy_j, 10.0)
    for _ in range(6):
        job.run(32, 200.0, 20.0, "early_stopped")
    assert job.ledger["cusum"][0] > ledger.DRIFT_THRESHOLD
    assert not job.ledger["past"]
    job.run(32, 210.0, 21.0)
    assert len(job.ledger["past"]) == 1
    assert job.expected.mean[0] == pytest.approx(210.0)
    assert job.ledger["default"]["count"] == 1


def test_eras_are_merged_with_the_same_sums() -> None:
    job = Job()
    cost = 100.0
    for _ in range(ledger.MAX_ERAS + 8):
        cost *= 3
        for _ in range(8):
            job.run(32, cost * 1.01, cost)
            job.run(32, cost * 0.99, cost)
    assert len(job.ledger["past"]) == ledger.MAX_ERAS
    assert ledger.recurrences(job.ledger) == 16 * (ledger.MAX_ERAS + 8)
    each = 3.0 ** np.arange(1, ledger.MAX_ERAS + 9) * 16 * 100
    assert ledger.spent(job.ledger)[0] == pytest.approx(each.sum())
