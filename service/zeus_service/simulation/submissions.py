"""A cluster's stream of job submissions, recorded or synthetic.

The recorded format is that of the groups of recurring jobs in Alibaba's cluster trace, as published
with Zeus (NSDI 2023): `group,start_time,end_time,dataset,runtime_ratio`, as `.csv` or `.csv.xz`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from zeus_service.simulation.csv_rows import rows_of

_COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")


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


def read(path: Path) -> list[Group]:
    """Read a file of submissions; raise a `SimulationError` if it is invalid."""
    groups: dict[str, list[Submission]] = {}
    datasets: dict[str, str] = {}
    for row in rows_of(path, _COLUMNS):
        group = row.text("group")
        dataset = datasets.setdefault(group, row.text("dataset"))
        if row.text("dataset") != dataset:
            raise row.error("dataset", f"{dataset!r}, as in the other rows of group {group}")
        start_s, end_s = row.number("start_time"), row.number("end_time")
        if end_s < start_s:
            raise row.error("end_time", f"at least start_time, {start_s:g}")
        submission = Submission(start_s, end_s, row.amount("runtime_ratio"))
        groups.setdefault(group, []).append(submission)
    return [
        Group(name, datasets[name], tuple(sorted(submissions, key=lambda each: each.start_s)))
        for name, submissions in groups.items()
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
