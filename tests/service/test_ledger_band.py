"""The band of what was saved, against simulated jobs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service.test_ledger import Job
from zeus_service import ledger
from zeus_service.history import Event
from zeus_service.simulation import family
from zeus_service.simulation.replay import SimulatedJob
from zeus_service.simulation.simulated_run import TrialRunner, run
from zeus_service.simulation.workload import Workload

RECURRENCES = 30
ASKED_AFTER = (1, 3, 10, 30)
SEEDS = family.REPORTED[:40]  # the prior was chosen on others


def saved_truly(workload: Workload, policy: str, seed: int) -> Iterator[tuple[Job, list[float]]]:
    """A job as its ledger has it, and what it has truly saved, after some of its recurrences."""
    spec = workload.spec(policy=policy, seed=seed)
    simulated, runner, job = SimulatedJob(spec), TrialRunner(spec), Job(spec)
    default = workload.settings[spec.default_batch_size]
    epoch = default.price(spec.eta_knob, workload.max_power_w).epoch
    epochs = default.expected_epochs(workload.max_epochs)
    truth = [0.0, 0.0, 0.0]
    for recurrence in range(1, RECURRENCES + 1):
        verdict = ""
        while verdict != "converged":
            started = simulated.start()
            setting = workload.settings[started.choice.batch_size]
            target_epoch, _ = runner.draw(started.choice.batch_size, setting.target_epochs)
            price = setting.price(spec.eta_knob, workload.max_power_w)
            bound = started.cost_bound
            ended = run(price, target_epoch, workload.max_epochs, bound, profiling=False)
            verdict, spent = ended.verdict, (ended.energy_j, ended.time_s)
            cost = spec.cost(*spent)
            job.apply(Event("started", started.number, started.choice))
            job.apply(Event("ended", started.number, started.choice, verdict, cost, *spent))
            simulated.end(started, verdict, cost)
            truth = [each - part for each, part in zip(truth, (*spent, cost), strict=True)]
        expected = (epochs * epoch.energy_j, epochs * epoch.time_s)
        expected_cost = spec.cost(*expected)
        truth = [each + part for each, part in zip(truth, (*expected, expected_cost), strict=True)]
        if recurrence in ASKED_AFTER:
            yield job, truth


@pytest.mark.parametrize("kind", ["ordinary", "noisy"])
@pytest.mark.parametrize("policy", ["information_directed", "zeus"])
def test_the_band_holds_the_truth_90_to_98_times_in_100(kind: str, policy: str) -> None:
    held = [
        abs(mean - true) <= error
        for seed in SEEDS
        for job, truth in saved_truly(family.case(kind, seed).workload, policy, seed)
        for mean, error, true in zip(job.saved.mean, job.saved.error, truth, strict=True)
    ]
    assert len(held) == 3 * len(ASKED_AFTER) * len(SEEDS)
    assert 0.90 <= sum(held) / len(held) <= 0.98


def test_a_job_that_always_takes_its_default_has_saved_nothing_within_its_band() -> None:
    held = []
    for seed in SEEDS:
        for job, truth in saved_truly(family.case("ordinary", seed).workload, "default", seed):
            assert job.saved.mean[2] == pytest.approx(0, abs=1e-9 * ledger.spent(job.ledger)[2])
            held.append(abs(truth[2]) <= job.saved.error[2])
    assert sum(held) / len(held) >= 0.90
