"""Experiments: replays of jobs, in one process or several, and what they cost."""

import math
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from zeus_service.bandit.spec import JobSpec
from zeus_service.errors import Unusable
from zeus_service.simulation.replay import MAX_TRIES, Submission, replay
from zeus_service.simulation.simulated_run import SimulatedTrial
from zeus_service.simulation.workload import Workload


class Key(NamedTuple):
    """The names of a workload, a GPU and a policy."""

    workload: str
    gpu: str
    policy: str


@dataclass(frozen=True)
class Experiment:
    """A replay of a job on a workload, with the job's policy, knobs and seed.

    Args:
        submissions: The number of recurrences, one after the other; or those that may overlap.
    """

    workload: Workload
    spec: JobSpec
    submissions: int | Sequence[Submission]

    @property
    def ratios(self) -> list[float]:
        """For each recurrence, how long it takes, in relation to the workload's mean."""
        if isinstance(self.submissions, int):
            return [1.0] * self.submissions
        return [submission.runtime_ratio for submission in self.submissions]

    def run(self) -> "Tally":
        """Replay the job, and add up its trials."""
        return tally(self, replay(self.workload, self.spec, self.submissions))


@dataclass(frozen=True)
class Tally:
    """What one replay came to: costs and energies in joules, times in seconds.

    Args:
        seed: The job's.
        costs: The cost of each recurrence, failed trials included.
        oracle_costs: The expected cost of each recurrence with the best batch size.
        default_energy_j: Energy expected with the default batch size at the largest power limit;
            `default_time_s` is the time.
        failed: Trials that failed.
        unreached: Recurrences that never reached the target.
        none_left: Whether the policy had no batch size left to try for one of these; for the
            others, `MAX_TRIES` trials failed.
        final: Batch sizes of the last ten recurrences that reached the target.
    """

    key: Key
    seed: int
    costs: tuple[float, ...]
    oracle_costs: tuple[float, ...]
    energy_j: float
    default_energy_j: float
    time_s: float
    default_time_s: float
    failed: int
    unreached: int
    none_left: bool
    final: tuple[int, ...]


def tally(experiment: Experiment, trials: Sequence[SimulatedTrial]) -> Tally:
    """Add up the trials of a replay."""
    workload, ratios, spec = experiment.workload, experiment.ratios, experiment.spec
    expected = {
        id(phase): (
            phase.expected_cost(phase.oracle(spec.eta_knob), spec.eta_knob),
            phase.default_at_full_power(),
        )
        for phase in workload.phases or (workload,)
    }
    phases = [expected[id(workload.at(recurrence))] for recurrence in range(len(ratios))]
    costs = [0.0] * len(ratios)
    for trial in trials:
        costs[trial.recurrence] += trial.cost
    tries = Counter(trial.recurrence for trial in trials)
    reached = {t.recurrence: t.batch_size for t in trials if t.result == "converged"}
    missed = [recurrence for recurrence in range(len(ratios)) if recurrence not in reached]
    defaults = [default.times(ratio) for (_, default), ratio in zip(phases, ratios, strict=True)]
    return Tally(
        key=Key(workload.name, workload.gpu, spec.policy or ""),
        seed=spec.random_seed(),
        costs=tuple(costs),
        oracle_costs=tuple(cost * ratio for (cost, _), ratio in zip(phases, ratios, strict=True)),
        energy_j=math.fsum(trial.energy_j for trial in trials),
        default_energy_j=math.fsum(run.energy_j for run in defaults),
        time_s=math.fsum(trial.time_s for trial in trials),
        default_time_s=math.fsum(run.time_s for run in defaults),
        failed=sum(trial.result != "converged" for trial in trials),
        unreached=len(missed),
        none_left=any(tries[recurrence] < MAX_TRIES for recurrence in missed),
        final=tuple(reached[recurrence] for recurrence in sorted(reached)[-10:]),
    )


def run_all(
    experiments: Sequence[Experiment], jobs: int = 1, scheduler: str | None = None
) -> Iterator[Tally]:
    """Run in `jobs` processes, or on a Dask scheduler's workers; yield tallies in order."""
    if jobs == 1 and scheduler is None:
        yield from map(Experiment.run, experiments)
        return
    # A forked process would inherit the locks of numpy's threads.
    spawn = multiprocessing.get_context("spawn")
    with _dask(scheduler) if scheduler is not None else ProcessPoolExecutor(jobs, spawn) as pool:
        yield from pool.map(Experiment.run, experiments)


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    try:
        import distributed
    except ImportError as error:
        raise Unusable("--dask needs Dask: pip install './service[dask]'") from error
    try:
        distributed.comm.get_address_host_port(scheduler)  # Client hangs on a malformed one
        client = distributed.Client(scheduler, timeout=5, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Unusable(f"no Dask scheduler at '{scheduler}': {error}") from error
    with client, client.get_executor() as pool:
        yield pool


def by_key(tallies: Iterable[Tally]) -> dict[Key, list[Tally]]:
    """The replays of each workload, GPU and policy, in the order in which they first appear."""
    groups: dict[Key, list[Tally]] = {}
    for each in tallies:
        groups.setdefault(each.key, []).append(each)
    return groups


class Ratio(NamedTuple):
    """A ratio of two sums over replays, and its standard error."""

    value: float
    error: float


def spent_over_oracle(tallies: Iterable[Tally], recurrences: int | None = None) -> Ratio:
    """The cost of replays over the oracle's, in their first recurrences or in all."""
    return ratio(
        (math.fsum(each.costs[:recurrences]), math.fsum(each.oracle_costs[:recurrences]))
        for each in tallies
    )


def ratio(pairs: Iterable[tuple[float, float]]) -> Ratio:
    """The ratio of the sum of the first numbers to the sum of the second ones.

    The standard error is a ratio estimate's (Cochran, Sampling Techniques, 1977, chapter 6);
    for replays of the same length, it is the standard error of the mean.
    """
    known = [(top, bottom) for top, bottom in pairs if 0 < bottom < math.inf]
    if not known:
        return Ratio(math.nan, math.nan)
    bottoms = math.fsum(bottom for _, bottom in known)
    value = math.fsum(top for top, _ in known) / bottoms
    if len(known) < 2:
        return Ratio(value, math.nan)
    squares = math.fsum((top - value * bottom) ** 2 for top, bottom in known)
    error = math.sqrt(squares * len(known) / (len(known) - 1)) / bottoms
    return Ratio(value, error)
