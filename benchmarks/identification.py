"""How often the chosen batch size is more than 3 % dearer: `python benchmarks/identification.py`.

A job of the wide family is stuck if its last 50 of 500 recurrences are more than 3 % dearer than
the best batch size (`family_runs.py`). The 450 before them say which one that is. Here, runs of
every batch size are free: no regret, no failures, no stops, and which batch sizes converge is
known. Then the batch size of the lowest mean log cost is chosen, or that of the lowest expected
cost by the policy's posterior of the epochs; what an epoch costs is known.

A policy has 450 runs for all batch sizes together, so it compares two with at most 225 each.
Top-two sampling shares them so that the best batch size is found, whatever the runs cost. Kinds
that change are left out, and heavy tails, where the mean of the logarithms is not the best
statistic.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
from excess import Outlays
from family import CHANGING, CHOSEN_ON, KINDS, case
from family_runs import LAST, LONG, STUCK
from rich.console import Console
from rich.table import Table
from zeus_service.bandit.cost_model import EPOCHS
from zeus_service.bandit.curve_model import Evidence, Floats, infer

RUNS = LONG - LAST
RNG = np.random.default_rng(0)


class Job(NamedTuple):
    """The batch sizes that converge: log costs of a run and of an epoch, and what runs deviate."""

    sizes: list[int]
    expected: Floats
    of_epoch: Floats
    deviations: Floats


def job(kind: str, seed: int) -> Job:
    """Draw a job of the family."""
    workload = case(kind, seed).workload
    spec = workload.spec(policy="information_directed")
    totals = Outlays(workload, spec).totals
    sizes = [size for size, total in totals.items() if math.isfinite(total)]
    epochs = np.array(workload.settings[sizes[0]].target_epochs)
    deviations = np.log(epochs[np.isfinite(epochs)])
    of_epoch = [
        workload.settings[size].price(spec.eta_knob, workload.max_power_w).epoch_cost
        for size in sizes
    ]
    expected = np.log([totals[size] for size in sizes])
    return Job(sizes, expected, np.log(of_epoch), deviations - deviations.mean())


def of_each(expected: Floats, deviations: Floats, runs: int) -> list[Floats]:
    """Return log costs of as many runs of each batch size."""
    return list(RNG.choice(deviations, (len(expected), runs)) + expected[:, None])


def top_two(expected: Floats, deviations: Floats) -> list[Floats]:
    """Return log costs of `RUNS` runs, each of the batch size that tells most about the best one.

    Top-two sampling with a transportation cost (Shang et al., "Fixed-confidence guarantees for
    Bayesian best-arm identification", AISTATS 2020), which is told the variance of the noise.
    """
    drawn = expected + RNG.choice(deviations, (RUNS, len(expected)))
    number = np.ones(len(expected), dtype=int)
    sums = drawn[0].copy()
    while number.sum() < RUNS:
        means, variances = sums / number, deviations.var() / number
        place = int(RNG.normal(means, np.sqrt(variances)).argmin())
        if RNG.random() < 0.5:
            above = np.maximum(0, means - means[place])
            distance = above**2 / (variances + variances[place])
            distance[place] = math.inf
            place = int(distance.argmin())
        sums[place] += drawn[number[place], place]
        number[place] += 1
    return [drawn[:runs, place] for place, runs in enumerate(number)]


def choices(of: Job, costs: list[Floats]) -> tuple[int, int]:
    """Return the indices of the batch sizes that look best after runs of these log costs."""
    means = np.array([each.mean() for each in costs])
    none = (0.0,) * len(of.sizes)
    evidence = Evidence(
        tuple(of.sizes),
        tuple(float(len(each)) for each in costs),
        tuple((means - of.of_epoch).tolist()),
        none,
        none,
        float(sum(each.var() * len(each) for each in costs)),
        float(sum(len(each) - 1 for each in costs)),
    )
    return int(np.argmin(means)), int((infer(evidence, EPOCHS).mean + of.of_epoch).argmin())


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="long jobs of each kind")
    seeds = CHOSEN_ON[::2][: parser.parse_args().seeds]  # even ones are long
    kinds = [kind for kind in KINDS if kind not in (*CHANGING, "heavy_tail")]
    jobs = [job(kind, seed) for kind in kinds for seed in seeds]
    title = "How often the chosen batch size is more than 3 % dearer than the best"
    table = Table(title=f"{title}, of {len(jobs)} jobs of {len(kinds)} kinds")
    for heading in ("runs", "by the lowest mean", "by the posterior"):
        table.add_column(heading, justify="right")
    shares: dict[str, Callable[[Floats, Floats], list[Floats]]] = {
        f"{RUNS} in all, shared equally": lambda costs, off: of_each(
            costs, off, RUNS // len(costs)
        ),
        f"{RUNS} in all, by top-two sampling": top_two,
        f"{RUNS // 2} of each": partial(of_each, runs=RUNS // 2),
        f"{RUNS} of each": partial(of_each, runs=RUNS),
    }
    for name, share in shares.items():
        stuck = []
        for each in jobs:
            dearer = np.exp(each.expected - each.expected.min()) - 1
            chosen = choices(each, share(each.expected, each.deviations))
            stuck.append([dearer[index] > STUCK for index in chosen])
        table.add_row(name, *(f"{100 * fmean(each):.1f} %" for each in zip(*stuck, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
