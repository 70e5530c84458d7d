"""What the policies spend, how fast they decide, and whether a new one is better than `zeus`.

Run it with `python benchmarks/policies.py --traces DIR`; it needs the extras `service` and
`analysis`, and the runs recorded for the Zeus paper (ZEUS_TRACES names their directory, too). Costs
are exact and the same on every machine; times are of this machine, now.

An excess is the total cost over that of always choosing the best batch size, less one. A policy is
better than `zeus` when

- its mean excess over the recorded pairs is at most half, over the full horizon and over the first
  30 recurrences, and on no pair more than one percentage point larger over the full horizon;
- it is no larger under overlapping submissions and under drift.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Column, Table
from zeus_service.policies import POLICIES, policy_of
from zeus_service.simulation import traces
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.experiment import Experiment, run_all
from zeus_service.simulation.job import SimulatedJob
from zeus_service.simulation.replay import replay
from zeus_service.simulation.submissions import made_up
from zeus_service.simulation.summary import Summary, summarize, tally
from zeus_service.simulation.synthetic import drifting, synthetic
from zeus_service.simulation.workload import Drift, Epoch, Setting, Workload

HELD_OUT = range(1000, 1030)
"""Seeds of made-up workloads; whoever tunes a policy takes others."""
DRIFTING = range(1000, 1010)
WINDOW = 10
RECURRENCES_PER_SECOND = {"zeus": 5000.0}
"""At least; of any other policy 500."""
DECISION_MS = 2.0
"""At most, with 20 batch sizes."""
CONSOLE = Console()


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("ZEUS_TRACES"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="default: all")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; default: one per core")
    arguments = parser.parse_args()
    if arguments.traces is None:
        parser.error("name the directory of the recorded runs with --traces or ZEUS_TRACES")
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2")
    policies = arguments.policy or list(POLICIES)
    try:
        pairs = [
            traces.read(arguments.traces, gpu, traces.RECIPES[name])
            for gpu in traces.gpus(arguments.traces)
            for name in traces.datasets(arguments.traces, gpu)
            if name in traces.RECIPES
        ]
    except SimulationError as error:
        parser.error(str(error))
    CONSOLE.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{arguments.seeds} seeds"
    )

    def compare(title: str, experiments: list[Experiment], *, each: bool = False) -> list[Summary]:
        results = run_all(experiments, arguments.jobs)
        summaries = summarize(list(map(tally, experiments, results)))
        CONSOLE.print(excess_table(title, summaries, policies, each=each))
        return summaries

    seeds = range(arguments.seeds)
    recorded = compare("Recorded runs", recurring(pairs, policies, seeds), each=True)
    fresh = [synthetic(seed) for seed in HELD_OUT]
    compare("Made-up workloads", recurring(fresh, policies, seeds[:5]))
    busy = compare(
        "Overlapping submissions", overlapping([*pairs, *fresh[:6]], policies, seeds[:5])
    )
    phases = [drifting(seed) for seed in DRIFTING]
    still = compare("Drift, no window", recurring(phases, policies, seeds[:5]))
    window = compare(
        f"Drift, window_size={WINDOW}",
        recurring(phases, policies, seeds[:5], window_size=WINDOW),
    )
    held = [check_speed(policy) for policy in policies]
    for policy in policies:
        if policy != "zeus" and "zeus" in policies:
            held.append(check_recorded(recorded, policy))
            held += [
                check_no_worse(title, summaries, policy)
                for title, summaries in (
                    ("overlapping submissions", busy),
                    ("drift", still),
                    ("drift with a window", window),
                )
            ]
    CONSOLE.print("all numbers hold" if all(held) else "not all numbers hold")
    return 0 if all(held) else 1


def recurring(
    workloads: Sequence[Workload | Drift],
    policies: Sequence[str],
    seeds: Sequence[int],
    **knobs: int,
) -> list[Experiment]:
    """Every workload with every policy and seed, one recurrence after the other."""
    return [
        Experiment(workload, workload.spec(policy=policy, seed=seed, **knobs), workload.horizon)
        for workload in workloads
        for policy in policies
        for seed in seeds
    ]


def overlapping(
    workloads: Sequence[Workload], policies: Sequence[str], seeds: Sequence[int]
) -> list[Experiment]:
    """Every workload with every policy and seed, as a busy cluster would start it."""
    return [
        Experiment(workload, workload.spec(policy=policy, seed=seed), group.submissions)
        for workload in workloads
        for policy in policies
        for seed in seeds
        for group in made_up([workload.name], seed, groups=4, submissions=100)
    ]


def excess(summaries: Sequence[Summary], policy: str, *, early: bool) -> float:
    """Mean excess of a policy over workloads."""
    return statistics.mean(
        (row.early_cost if early else row.cost).value - 1
        for row in summaries
        if row.policy == policy
    )


def excess_table(
    title: str, summaries: Sequence[Summary], policies: Sequence[str], *, each: bool
) -> Table:
    """Every policy's excess over all recurrences and over the first 30, on `each` workload too."""
    columns = (Column(name, no_wrap=True, justify="right") for name in ("all", "first 30"))
    table = Table(
        Column("workload, policy", no_wrap=True),
        *columns,
        box=box.SIMPLE_HEAD,
        title=f"{title}: excess",
        title_justify="left",
    )
    rows: dict[str, list[Summary]] = {}
    if each:
        for row in summaries:
            rows.setdefault(f"{row.workload} {row.gpu}", []).append(row)
    rows[f"mean of {len(summaries) // len(policies)}"] = list(summaries)
    for name, group in rows.items():
        table.add_row(name)
        for policy in policies:
            spans = (f"{excess(group, policy, early=early):.2%}" for early in (False, True))
            table.add_row(f"  {policy}", *spans)
    return table


def check_recorded(summaries: Sequence[Summary], policy: str) -> bool:
    """At most half of the excess of `zeus`, on no pair a point more."""
    right = True
    for early, span in ((False, "the full horizon"), (True, "the first 30")):
        share = excess(summaries, policy, early=early) / excess(summaries, "zeus", early=early)
        right &= verdict(
            share <= 0.5, f"{policy}: {share:.0%} of the excess of zeus over {span} (at most 50 %)"
        )
    values = {
        (row.workload, row.gpu, row.policy): row.cost.value
        for row in summaries
        if row.policy in ("zeus", policy)
    }
    pairs = {(row.workload, row.gpu) for row in summaries}
    worst = max(pairs, key=lambda pair: values[*pair, policy] - values[*pair, "zeus"])
    points = values[*worst, policy] - values[*worst, "zeus"]
    return right & verdict(
        points <= 0.01,
        f"{policy}: {points:+.2%} against zeus on its worst pair, {' '.join(worst)} (at most +1 %)",
    )


def check_no_worse(title: str, summaries: Sequence[Summary], policy: str) -> bool:
    """No more excess than `zeus`."""
    mine, theirs = (excess(summaries, name, early=False) for name in (policy, "zeus"))
    return verdict(mine <= theirs, f"{policy}: {mine:.2%} under {title}, zeus {theirs:.2%}")


def check_speed(policy: str) -> bool:
    """Recurrences per second on one core, and how long a decision takes with 20 batch sizes."""
    workload = synthetic(3)
    spec = workload.spec(policy=policy, seed=1)
    replay(workload, spec, 50)
    began = time.process_time()  # of this process alone, whatever else the machine does
    replay(workload, spec, 2000)
    speed = 2000 / (time.process_time() - began)
    wanted = RECURRENCES_PER_SECOND.get(policy, 500.0)
    right = verdict(
        speed >= wanted, f"{policy}: {speed:,.0f} recurrences a second (at least {wanted:,.0f})"
    )
    first, *later = decision_ms(policy)
    median, most = statistics.median(later), statistics.quantiles(later, n=100)[-1]
    return right & verdict(
        most <= DECISION_MS,
        f"{policy}: a decision takes {median:.2f} ms, 99 of 100 at most {most:.2f} ms (at most "
        f"{DECISION_MS:g} ms); the slowest {max(later):.2f} ms, the first after a cost is "
        f"known {first:.2f} ms",
    )


def decision_ms(policy: str) -> list[float]:
    """CPU milliseconds of 1,000 decisions with 20 batch sizes, all of which work."""
    sizes = [8 * (number + 1) for number in range(20)]
    setting = Setting((9.0, 10.0, 11.0), {200.0: Epoch(1.0, 150.0)})
    workload = Workload("twenty", "made-up", dict.fromkeys(sizes, setting), 80, 20, 200.0)
    spec = workload.spec(policy=policy, seed=1)
    job, took = SimulatedJob(spec), []
    cost = np.random.default_rng(1)
    for number in range(1, 1002):
        rng = np.random.default_rng([1, number])
        began = time.thread_time()  # other processes take time from the clock on the wall
        policy_of(spec).next_batch_size(spec, job.state, rng)
        took.append(1e3 * (time.thread_time() - began))
        started = job.start()
        job.end(number, started.choice, "converged", float(cost.normal(1000.0, 50.0)))
    return took[1:]  # the very first knows of no cost, and takes the default


def verdict(right: bool, text: str) -> bool:
    """Print a number, and whether it holds."""
    CONSOLE.print(
        f"{'[green]holds[/]' if right else '[red]FAILS[/]'}  {text}",
        highlight=False,
        soft_wrap=True,
    )
    return right


if __name__ == "__main__":
    sys.exit(main())
