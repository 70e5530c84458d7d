"""The cost and speed of the policies, and whether a new one is better than `zeus`.

Each option replays one kind of jobs; it needs the environment of `make install`:

- `--traces DIR`: the runs recorded for the Zeus paper, and the time of a decision. The variable
  ZEUS_TRACES can also name their directory;
- `--mlperf FILE`: MLPerf's reference convergence points (`mlperf.py`);
- `--family`: a wide family of synthetic workloads (`family.py`); `--part chosen-on` takes the part
  of it on which constants are chosen;
- `--hostile`: the kinds on which a policy with a prior can lose (`hostile.py`);
- `--moves`, with `--traces DIR`: jobs that change hardware (`moves.py`).

Costs are the same on every machine; times depend on the machine and its load.

The excess is the total cost over that of always choosing the best batch size, minus one. A policy
is better than `zeus` if

- its mean excess over the recorded pairs is at most half as large, over the full horizon and over
  the first 30 recurrences, and on no pair more than one percentage point larger over the full one;
- its excess is on no kind of the wide family of workloads more than one point larger, and no more
  than 1 % of its jobs are stuck.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import hostile
import mlperf
import moves
import numpy as np
from excess import Case, Rows, by_row, costs_of_cases, mean_excess
from excess import excess_table as table_of_rows
from family import CHOSEN_ON, KINDS, REPORTED
from family_runs import (
    family_table,
    not_stuck,
    replayed,
    worst_kind,
)
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from zeus_service.bandit.registry import DEFAULT_POLICY, POLICIES, policy_of
from zeus_service.simulation import recordings
from zeus_service.simulation.experiment import (
    Experiment,
    Key,
    Tally,
    by_key,
    run_all,
    spent_over_oracle,
)
from zeus_service.simulation.replay import SimulatedJob
from zeus_service.simulation.result_tables import EARLY
from zeus_service.simulation.workload import Epoch, Setting, Workload

PARTS = {"reported": REPORTED, "chosen-on": CHOSEN_ON}
DECISION_MS = {20: 2.0, 128: 5.0}
"""The upper limit by the number of batch sizes."""
DEVICE_JOBS = 8
"""Simulated jobs on 1 to 8 devices, for each seed of the recorded ones."""
CONSOLE = Console()
T = TypeVar("T")
Results = dict[Key, list[Tally]]


def main() -> int:
    parser = ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="A terminal shows the progress, and the time that is left. Fewer --seeds, or one "
        "--policy, take less.",
    )
    parser.add_argument("--traces", type=Path, default=os.environ.get("ZEUS_TRACES"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--family", action="store_true", help="replay only the wide family")
    parser.add_argument("--part", choices=list(PARTS), default="reported")
    parser.add_argument(
        "--mlperf",
        type=Path,
        nargs="?",
        const=os.environ.get("ZEUS_MLPERF", "convergence.csv"),
        metavar="FILE",
        help="replay only MLPerf's reference convergence points; default: $ZEUS_MLPERF",
    )
    parser.add_argument("--moves", action="store_true", help="replay only changes of hardware")
    parser.add_argument("--hostile", action="store_true", help="replay only hostile kinds")
    arguments = parser.parse_args()
    if arguments.hostile:
        return 0 if hostile_kinds(arguments) else 1
    if arguments.mlperf:
        return 0 if industrial(arguments) else 1
    if arguments.family:
        return 0 if family(arguments) else 1
    if arguments.traces is None:
        parser.error("name the directory of the recorded runs with --traces or ZEUS_TRACES")
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2")
    if arguments.moves:
        return 0 if changing_hardware(arguments) else 1
    return 0 if recorded(arguments) else 1


def recorded(arguments: Namespace) -> bool:
    """Replay the recorded runs, and measure decisions; return whether all checks passed."""
    policies = arguments.policy or list(POLICIES)
    pairs = [
        recordings.read(arguments.traces, gpu, recipe)
        for gpu in recordings.gpus(arguments.traces)
        for recipe in recordings.paper_recipes(arguments.traces, gpu)
    ]
    experiments = [
        Experiment(workload, workload.spec(policy=policy, seed=seed), workload.horizon)
        for workload in pairs
        for policy in policies
        for seed in range(arguments.seeds)
    ]
    tallies = run_all(experiments, arguments.jobs)
    results = by_key(shown(tallies, "Recorded runs", len(experiments)))
    CONSOLE.print(f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}")
    CONSOLE.print(f"{arguments.seeds} seeds", excess_table(results, policies), sep="\n")
    passed = [check_decisions(policy) for policy in policies]
    passed += [
        check_recorded(results, policy)
        for policy in policies
        if policy != "zeus" and "zeus" in policies
    ]
    return all(passed)


def family(arguments: Namespace) -> bool:
    """Replay the wide family of workloads; return whether all checks passed."""
    policies = arguments.policy or list(POLICIES)
    seeds = PARTS[arguments.part][: arguments.seeds]
    runs = [(kind, seed, policy) for kind in KINDS for seed in seeds for policy in policies]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        replays = pool.map(replayed, *zip(*runs, strict=True))
        results = list(shown(replays, "The wide family", len(runs)))
    CONSOLE.print(f"The wide family, part {arguments.part}: {len(seeds)} workloads of each kind")
    CONSOLE.print(family_table(results, policies))
    passed = True
    for policy in policies:
        if policy not in ("zeus", "default"):
            passed &= checked(*not_stuck(results, policy))
            if "zeus" in policies:
                passed &= checked(*worst_kind(results, policy, "zeus"))
    return passed


def industrial(arguments: Namespace) -> bool:
    """Replay MLPerf's models; return whether all checks passed."""
    policies = arguments.policy or ["zeus", DEFAULT_POLICY]
    cases = mlperf.cases(arguments.mlperf, policies, range(arguments.seeds))
    title = "MLPerf's reference convergence points"
    rows = replayed_rows(cases, f"{title}: excess", "models", arguments)
    return check_rows(rows, policies, points=0.0)


def hostile_kinds(arguments: Namespace) -> bool:
    """Replay hostile kinds of jobs; return whether all checks passed."""
    policies = arguments.policy or ["zeus", DEFAULT_POLICY]
    cases = hostile.cases(policies, range(arguments.seeds))
    rows = replayed_rows(cases, "Hostile kinds: excess", "kinds", arguments)
    return check_rows(rows, policies, points=0.02)


def changing_hardware(arguments: Namespace) -> bool:
    """Replay jobs that change hardware; return whether all checks passed."""
    policies = arguments.policy or ["zeus", DEFAULT_POLICY]
    seeds, passed = range(arguments.seeds), True
    recorded = moves.cases(moves.recorded_moves(arguments.traces), policies, seeds)
    simulated = range(DEVICE_JOBS * arguments.seeds)
    devices = moves.cases(moves.device_moves(simulated), policies, seeds[:1])
    for title, cases, replays in (
        ("Recorded GPUs", recorded, f"{len(seeds)} seeds"),
        ("1 to 8 devices", devices, f"{len(simulated)} jobs"),
    ):
        rows = by_row(cases, shown(costs_of_cases(cases, arguments.jobs), title, len(cases)))
        CONSOLE.print(f"{title}: excess; {replays}", moves.excess_table(rows), sep="\n")
        for policy in policies:
            if policy not in ("zeus", "default"):
                for right, text in moves.checks(rows, policy):
                    passed &= checked(right, f"{title}: {policy} {text}")
    return passed


def replayed_rows(cases: Sequence[Case], title: str, rows_are: str, arguments: Namespace) -> Rows:
    """Replay cases, and print the excess of each row."""
    costs = shown(costs_of_cases(cases, arguments.jobs), title, len(cases))
    rows = by_row(cases, costs)
    CONSOLE.print(f"{title}; {arguments.seeds} seeds")
    CONSOLE.print(table_of_rows(rows_are.removesuffix("s"), rows, mean_of=rows_are))
    return rows


def check_rows(rows: Rows, policies: Sequence[str], *, points: float) -> bool:
    """Check that no row's excess is larger than that of `zeus` by more than some points."""
    passed = True
    for policy in policies:
        if policy == "zeus" or "zeus" not in policies:
            continue
        above = {row: mean_excess(of[policy]) - mean_excess(of["zeus"]) for row, of in rows.items()}
        worst = max(above, key=lambda row: above[row])
        passed &= checked(
            above[worst] <= points,
            f"{policy}: {above[worst]:+.2%} against zeus on its worst row, {worst} "
            f"(at most {points:+.0%})",
        )
    return passed


def shown(results: Iterable[T], title: str, total: int) -> Iterable[T]:
    """Pass results on, with a progress bar in a terminal."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    return track(results, title, total=total, console=console, transient=True, disable=hidden)


def excess(results: Results, policy: str, *, early: bool) -> float:
    """Mean excess of a policy over workloads."""
    return statistics.mean(
        spent_over_oracle(tallies, EARLY if early else None).value - 1
        for key, tallies in results.items()
        if key.policy == policy
    )


def excess_table(results: Results, policies: Sequence[str]) -> Table:
    """The excess of each policy, over all recurrences and over the first 30, on each workload."""
    columns = (Column(name, no_wrap=True, justify="right") for name in ("all", "first 30"))
    table = Table(
        Column("workload, policy", no_wrap=True),
        *columns,
        box=box.SIMPLE_HEAD,
        title="Recorded runs: excess",
        title_justify="left",
    )
    rows: dict[str, Results] = {}
    for key, tallies in results.items():
        rows.setdefault(f"{key.workload} {key.gpu}", {})[key] = tallies
    rows[f"mean of {len(rows)}"] = results
    for name, group in rows.items():
        table.add_row(name)
        for policy in policies:
            spans = (f"{excess(group, policy, early=early):.2%}" for early in (False, True))
            table.add_row(f"  {policy}", *spans)
    return table


def check_recorded(results: Results, policy: str) -> bool:
    """Check for at most half of the excess of `zeus`, and at most a point more on every pair."""
    right = True
    for early, span in ((False, "the full horizon"), (True, "the first 30")):
        share = excess(results, policy, early=early) / excess(results, "zeus", early=early)
        right &= checked(
            share <= 0.5, f"{policy}: {share:.0%} of the excess of zeus over {span} (at most 50 %)"
        )
    costs = {key: spent_over_oracle(tallies).value for key, tallies in results.items()}
    points, worst = max(
        (costs[key._replace(policy=policy)] - cost, f"{key.workload} {key.gpu}")
        for key, cost in costs.items()
        if key.policy == "zeus"
    )
    return right & checked(
        points <= 0.01,
        f"{policy}: {points:+.2%} against zeus on its worst pair, {worst} (at most +1 %)",
    )


def check_decisions(policy: str) -> bool:
    """Check the times of decisions on one core."""
    right = True
    for count, limit in DECISION_MS.items():
        # The same decisions three times: other processes slow some of them down.
        passes = [decision_ms(policy, count) for _ in range(3)]
        first, later = passes[0][0], list(map(min, *passes))[1:]
        median, slow = statistics.median(later), statistics.quantiles(later, n=100)[-1]
        right &= checked(
            slow <= limit,
            f"{policy}: with {count} batch sizes a decision takes {median:.2f} ms, the 99th "
            f"percentile is {slow:.2f} ms (at most {limit:g} ms), the maximum {max(later):.2f} ms; "
            f"the first decision after a cost took {first:.2f} ms",
        )
    return right


def decision_ms(policy: str, count: int) -> list[float]:
    """CPU milliseconds of 1,000 decisions with batch sizes all of which work."""
    sizes = [8 * (number + 1) for number in range(count)]
    setting = Setting((9.0, 10.0, 11.0), {200.0: Epoch(1.0, 150.0)})
    workload = Workload("many", "synthetic", dict.fromkeys(sizes, setting), 80, 20, 200.0)
    spec = workload.spec(policy=policy, seed=1)
    job, took = SimulatedJob(spec), []
    cost = np.random.default_rng(1)
    for number in range(1, 1002):
        rng = np.random.default_rng([1, number])
        began = time.thread_time()  # not the time of other processes
        policy_of(spec).next_batch_size(spec, job.state, workload.hardware, rng, sizes)
        took.append(1e3 * (time.thread_time() - began))
        started = job.start(workload.hardware)
        job.end(started, "converged", float(cost.normal(1000.0, 50.0)), epochs=10)
    return took[1:]  # without a cost, the first decision is to take the default


def checked(right: bool, text: str) -> bool:
    """Print the result of a check; return it."""
    result = "[green]passed[/]" if right else "[red]FAILED[/]"
    CONSOLE.print(f"{result}  {text}", highlight=False, soft_wrap=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
