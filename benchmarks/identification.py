"""How often the chosen batch size is more than 3 % dearer: `python benchmarks/identification.py`.

A job of the wide family is stuck if its last 50 of 500 recurrences are more than 3 % dearer than
the best batch size (`family_runs.py`). The 450 before them say which one that is. Here, runs of
every batch size are free: no regret, no failures, no stops, and which batch sizes converge is
known. Then the batch size of the lowest mean log cost is chosen, or that of the lowest expected
cost by the policy's belief.

A policy has 450 runs for all batch sizes together, so it compares two with at most 225 each. Kinds
that change are left out, and heavy tails, where the mean of the logarithms is not the best
statistic.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from statistics import fmean

import numpy as np
from family_runs import LAST, LONG, STUCK, Outlays
from reference import CHANGING
from rich.console import Console
from rich.table import Table
from zeus_service.policies.cost_model import Evidence, Floats, believe
from zeus_service.simulation.family import CHOSEN_ON, KINDS, case

RUNS = LONG - LAST


def log_costs(kind: str, seed: int) -> tuple[list[int], Floats, Floats]:
    """Return a job's batch sizes that converge, their expected log costs, and what runs deviate."""
    workload = case(kind, seed).workload
    totals = Outlays(workload, workload.spec(policy="information_directed")).totals
    sizes = [size for size, total in totals.items() if math.isfinite(total)]
    epochs = np.array(workload.settings[sizes[0]].target_epochs)
    deviations = np.log(epochs[np.isfinite(epochs)])
    return sizes, np.log([totals[size] for size in sizes]), deviations - deviations.mean()


def choices(
    sizes: list[int], expected: Floats, deviations: Floats, runs: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Return the indices of the batch sizes that look best after so many runs of each."""
    costs = expected + rng.choice(deviations, (runs, len(sizes)))
    none = (0.0,) * len(sizes)
    evidence = Evidence(
        tuple(sizes),
        (float(runs),) * len(sizes),
        tuple(costs.mean(axis=0).tolist()),
        none,
        none,
        float(costs.var(axis=0).sum() * runs),
        float(len(sizes) * (runs - 1)),
    )
    return int(costs.mean(axis=0).argmin()), int(believe(evidence).mean.argmin())


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="long jobs of each kind")
    seeds = CHOSEN_ON[::2][: parser.parse_args().seeds]  # even ones are long
    kinds = [kind for kind in KINDS if kind not in (*CHANGING, "heavy_tail")]
    jobs = [log_costs(kind, seed) for kind in kinds for seed in seeds]
    rng = np.random.default_rng(0)
    title = "How often the chosen batch size is more than 3 % dearer than the best"
    table = Table(title=f"{title}, of {len(jobs)} jobs of {len(kinds)} kinds")
    for heading in ("runs of each batch size", "by the lowest mean", "by the belief"):
        table.add_column(heading, justify="right")
    for free in (None, RUNS // 2, RUNS):
        stuck = []
        for job in jobs:
            runs = free or RUNS // len(job[0])
            dearer = np.exp(job[1] - job[1].min()) - 1
            stuck.append([dearer[index] > STUCK for index in choices(*job, runs, rng)])
        name = str(free or f"{RUNS} shared equally")
        table.add_row(name, *(f"{100 * fmean(each):.1f} %" for each in zip(*stuck, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
