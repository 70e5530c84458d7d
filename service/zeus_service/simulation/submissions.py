"""A cluster's stream of job submissions, recorded or synthetic.

The recorded format is that of the groups of recurring jobs in Alibaba's cluster trace, as published
with Zeus (NSDI 2023): `group,start_time,end_time,dataset,runtime_ratio`, as `.csv` or `.csv.xz`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from pydantic import FiniteFloat

from zeus_service.simulation.csv_rows import PositiveAmount, Row, read_rows


@dataclass(frozen=True)
class Submission:
    """One recurrence of a job, which starts and ends at these times in seconds.

    Args:
        runtime_ratio: How long it takes, in relation to the mean of its dataset.
    """

    start_s: float
    end_s: float
    runtime_ratio: float


@dataclass(frozen=True)
class Group:
    """A recurring job: all its submissions, in the order in which they start."""

    name: str
    dataset: str
    submissions: tuple[Submission, ...]


class _Row(Row):
    group: str
    start_time: FiniteFloat
    end_time: FiniteFloat
    dataset: str
    runtime_ratio: PositiveAmount


def read_groups(path: Path) -> list[Group]:
    """Read a file of submissions; raise a `SimulationError` if it is invalid."""
    groups: dict[tuple[str, str], list[Submission]] = {}
    for row in read_rows(path, _Row):
        submission = Submission(row.start_time, row.end_time, row.runtime_ratio)
        groups.setdefault((row.group, row.dataset), []).append(submission)
    return [
        Group(name, dataset, tuple(sorted(submissions, key=lambda each: each.start_s)))
        for (name, dataset), submissions in groups.items()
    ]


def synthetic_groups(
    datasets: list[str], seed: int, *, groups: int, submissions: int
) -> list[Group]:
    """Generate recurring jobs that train the datasets in turn, and most of whose runs overlap."""
    result = []
    for number, dataset in zip(range(groups), cycle(datasets), strict=False):
        generated = _synthetic(np.random.default_rng([seed, number, 4]), submissions)
        result.append(Group(f"{dataset}-{number}", dataset, tuple(generated)))
    return result


def _synthetic(rng: np.random.Generator, count: int) -> Iterator[Submission]:
    mean_s = 3600.0
    # Between jobs whose runs rarely overlap and jobs of which five runs overlap.
    interval_s = mean_s * rng.uniform(0.2, 1.5)
    start_s = 0.0
    for _ in range(count):
        ratio = float(rng.lognormal(-0.125, 0.5))  # of mean one
        yield Submission(start_s, start_s + ratio * mean_s, ratio)
        start_s += float(rng.exponential(interval_s))
