"""Replays of the wide family of synthetic workloads, and what they say about a policy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from excess import costs_of
from family import case
from rich import box
from rich.table import Column, Table
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.replay import replay
from zeus_service.simulation.result_tables import EARLY

LAST = 50
STUCK = 0.03
"""A job is stuck if its last runs are expected to cost so much more than the best."""
LONG = 500
"""Recurrences from which on a job can be stuck."""


@dataclass(frozen=True)
class Replayed:
    """What a policy made of a workload.

    Args:
        excess: Over all recurrences; None if every batch size has failed.
        early: Over the first `EARLY`.
        last: Expected cost of the last batch sizes over that of the best one, minus one; None if
            the job is not `LONG`.
    """

    kind: str
    policy: str
    excess: float | None
    early: float | None
    last: float | None


def replayed(kind: str, seed: int, policy: str) -> Replayed:
    """Replay a workload of the family."""
    made = case(kind, seed)
    workload = made.workload
    spec = workload.spec(policy=policy, seed=seed)
    experiment = Experiment(workload, spec, made.recurrences)
    trials = replay(workload, spec, made.recurrences)
    costs = costs_of(experiment, trials)
    if costs.none_left:
        return Replayed(kind, policy, None, None, None)
    last = costs.chosen / costs.oracle - 1
    return Replayed(
        kind,
        policy,
        costs.excess(),
        costs.excess(0, EARLY),
        float(last[-LAST:].mean()) if len(last) >= LONG else None,
    )


def family_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    """The mean excess of each policy on each kind of workload, and how many jobs are stuck."""
    table = Table(
        "kind, policy",
        *(Column(name, justify="right") for name in ("all", "first 30", "stuck", "all failed")),
        box=box.SIMPLE_HEAD,
    )
    kinds = list(dict.fromkeys(result.kind for result in results))
    rows = {kind: [kind] for kind in kinds}
    for name, those in {**rows, f"mean of {len(kinds)} kinds": kinds}.items():
        table.add_row(name)
        for policy in policies:
            mine = [result for result in results if result.policy == policy]
            spans = (
                statistics.fmean(mean_excess(mine, kind, early=early) for kind in those)
                for early in (False, True)
            )
            of_kinds = [result for result in mine if result.kind in those]
            stuck, long = stuck_of(of_kinds)
            table.add_row(
                f"  {policy}",
                *(f"{span:.2%}" for span in spans),
                f"{stuck} of {long}",
                f"{sum(result.excess is None for result in of_kinds)} of {len(of_kinds)}",
            )
    return table


def mean_excess(results: Sequence[Replayed], kind: str, *, early: bool) -> float:
    """The mean over the jobs of a kind that did not end because every batch size had failed."""
    values = [each.early if early else each.excess for each in results if each.kind == kind]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else math.nan


def stuck_of(results: Sequence[Replayed]) -> tuple[int, int]:
    """The number of jobs that are stuck, and of those that are long enough for that."""
    last = [each.last for each in results if each.last is not None]
    return sum(each > STUCK for each in last), len(last)


def not_stuck(results: Sequence[Replayed], policy: str) -> tuple[bool, str]:
    """Check for at most 1 % of stuck jobs."""
    stuck, long = stuck_of([each for each in results if each.policy == policy])
    return stuck <= 0.01 * long, f"{policy}: {stuck} of {long} long jobs are stuck (at most 1 %)"


def worst_kind(results: Sequence[Replayed], policy: str, other: str) -> tuple[bool, str]:
    """Check for at most a point more on every kind."""
    mine, theirs = ([each for each in results if each.policy == p] for p in (policy, other))
    points = {
        kind: mean_excess(mine, kind, early=False) - mean_excess(theirs, kind, early=False)
        for kind in dict.fromkeys(each.kind for each in mine)
    }
    known = {kind: value for kind, value in points.items() if math.isfinite(value)}
    worst = max(known, key=lambda kind: known[kind])
    return (
        known[worst] <= 0.01,
        f"{policy}: {known[worst]:+.2%} against {other} on its worst kind, {worst} (at most +1 %)",
    )
