"""How often the interval of what a job has saved holds the truth, and how wide it is.

    python -m benchmarks.savings [--jobs 100] [--chosen-on]

Jobs are simulated, so that the truth is known. An interval's width is compared with that of an
estimator which knows the noise: the true standard deviation of a run's log cost, and nothing else.
Its half-width is `recurrences * expected * (exp(1.96 sigma / sqrt(runs of the default)) - 1)`.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import NoBatchSizeLeft
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.savings.expected import Ledger
from zeus_service.savings.ledger import Era, record
from zeus_service.savings.power import Profile
from zeus_service.savings.report import Amounts, saved
from zeus_service.simulation.replay import MAX_TRIES, SimulatedJob
from zeus_service.simulation.simulated_run import TrialRunner, run
from zeus_service.simulation.workload import Workload

from benchmarks.family import CHOSEN_ON, REPORTED, case

KINDS = ("ordinary", "noisy", "dearer", "cheaper", "to_and_fro", "heavy_tail")
POLICIES = ("information_directed", "zeus")
AFTER = (1, 3, 10, 30, 400)


@dataclass
class Ended:
    """A trial that has ended, as `savings.ledger` counts it."""

    batch_size: int
    hardware: Hardware
    outcome: Outcome
    energy_j: float
    time_s: float
    cost: float
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None


class JobLedger:
    """A job's ledgers, its eras, and its trials."""

    def __init__(self, spec: JobSpec, profile: Profile = ()) -> None:
        self.spec = spec
        self.profile = profile
        self.ledgers: dict[str, Ledger] = {}
        self.eras: list[Era] = []
        self.trials: list[tuple[Ended, int | None]] = []

    def end(self, trial: Ended) -> None:
        """Record a trial's end."""
        key = trial.hardware.device_model, trial.hardware.num_devices
        self.ledgers, self.eras, number = record(
            self.spec, self.ledgers, self.eras, trial, {key: self.profile}
        )
        self.trials.append((trial, number))

    @property
    def saved(self) -> Amounts | None:
        """What the job has saved."""
        return saved(self.eras)


@dataclass(frozen=True)
class Answer:
    """What a job is said to have saved after some recurrences, and what it has.

    Args:
        recurrences: Its runs that converged.
        found: What it is said to have saved.
        truth: Joules and seconds that it has truly saved.
        known_error: Half-width of the energy's interval if the noise were known; None if the
            default has never run.
    """

    recurrences: int
    found: Amounts
    truth: tuple[float, float]
    known_error: float | None

    @property
    def held(self) -> list[bool]:
        """Whether each interval holds the truth."""
        found = (self.found.energy_j, self.found.time_s)
        return [each.low <= x <= each.high for each, x in zip(found, self.truth, strict=True)]


def simulate(
    workload: Workload, policy: str, seed: int, after: Sequence[int]
) -> Iterator[tuple[JobLedger, Answer]]:
    """Replay a job, and ask after some of its recurrences what it has saved.

    A recurrence is given up after `MAX_TRIES` failed trials. The job ends when its policy has no
    batch size left.
    """
    spec = workload.spec(policy=policy, seed=seed)
    simulated, runner, ledger = SimulatedJob(spec), TrialRunner(spec), JobLedger(spec)
    truth, count, of_default = np.zeros(2), 0, 0
    for recurrence in range(max(after)):
        now = workload.at(recurrence)
        default = now.settings[spec.default_batch_size]
        epoch = default.price(spec.eta_knob, now.max_power_w).epoch
        expected = epoch.times(default.expected_epochs(now.max_epochs))
        for _ in range(MAX_TRIES):
            try:
                started = simulated.start(workload.hardware)
            except NoBatchSizeLeft:
                return
            setting = now.settings[started.choice.batch_size]
            target_epoch, _ = runner.draw(started.choice.batch_size, setting.target_epochs)
            price = setting.price(spec.eta_knob, now.max_power_w)
            ended = run(price, target_epoch, now.max_epochs, started.cost_bound, profiling=False)
            cost = spec.cost(ended.energy_j, ended.time_s, now.max_power_w)
            spent = (ended.energy_j, ended.time_s, cost)
            simulated.end(started, ended.result, cost, ended.epochs)
            ledger.end(Ended(started.choice.batch_size, workload.hardware, ended.result, *spent))
            truth -= spent[:2]
            if ended.result == "converged":
                break
        else:
            continue
        count += 1
        of_default += started.choice.batch_size == spec.default_batch_size
        truth += (expected.energy_j, expected.time_s)
        if recurrence + 1 in after and (found := ledger.saved):
            sigma = np.log([each for each in default.target_epochs if math.isfinite(each)]).std()
            known = (
                count * expected.energy_j * math.expm1(1.96 * sigma / math.sqrt(of_default))
                if of_default
                else None
            )
            energy_j, time_s = truth.tolist()
            yield ledger, Answer(recurrence + 1, found, (energy_j, time_s), known)


def answers(kind: str, policy: str, seeds: Sequence[int], after: Sequence[int]) -> list[Answer]:
    """The answers of one job for each seed."""
    return [
        answer
        for seed in seeds
        for _, answer in simulate(case(kind, seed).workload, policy, seed, after)
    ]


def coverage(given: Sequence[Answer]) -> float:
    """The share of intervals that hold the truth."""
    return float(np.mean([held for answer in given for held in answer.held]))


def width(given: Sequence[Answer]) -> float:
    """The median of half-widths of the energy's interval, relative to one that knows the noise."""
    return float(
        np.median([a.found.energy_j.error / a.known_error for a in given if a.known_error])
    )


def main() -> None:
    """Print both tables."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument(
        "--chosen-on", action="store_true", help="the jobs on which constants were chosen"
    )
    options = parser.parse_args()
    seeds = (CHOSEN_ON if options.chosen_on else REPORTED)[: options.jobs]
    held = Table("jobs", "policy", *map(str, AFTER), title="Intervals that hold the truth, in 100")
    wide = Table("jobs", "policy", *map(str, AFTER), title="Median width, over a known noise's")
    for kind in KINDS:
        for policy in POLICIES:
            every = answers(kind, policy, seeds, AFTER)
            columns = [[each for each in every if each.recurrences == n] for n in AFTER]
            held.add_row(kind, policy, *(f"{100 * coverage(each):.0f}" for each in columns))
            wide.add_row(kind, policy, *(f"{width(each):.2f}" for each in columns))
    console = Console()
    console.print(held)
    console.print(wide)


if __name__ == "__main__":
    main()
