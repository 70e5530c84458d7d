"""A cluster's stream of job submissions, recorded or made up.

The recorded format is that of the groups of recurring jobs in Alibaba's cluster trace, as published
with Zeus (NSDI 2023): `group,start_time,end_time,dataset,runtime_ratio`, as `.csv` or `.csv.xz`.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.table import Row, rows_of

_COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")


@dataclass(frozen=True)
class Submission:
    """One start of a recurring job.

    Args:
        start_s: When it starts, in seconds.
        end_s: When it ends, in seconds.
        runtime_ratio: How long it takes against the mean of its dataset.
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
    """Read a file of submissions.

    Raises:
        SimulationError: It cannot be read, lacks columns, or a row is wrong.
    """
    groups: dict[str, list[Submission]] = {}
    datasets: dict[str, str] = {}
    with _opened(path) as file:
        for row in rows_of(path, file, _COLUMNS):
            group = row.text("group")
            dataset = datasets.setdefault(group, row.text("dataset"))
            if row.text("dataset") != dataset:
                raise row.error("dataset", f"{dataset!r}, as in the other rows of group {group}")
            groups.setdefault(group, []).append(_submission(row))
    return [
        Group(name, datasets[name], tuple(sorted(submissions, key=lambda each: each.start_s)))
        for name, submissions in groups.items()
    ]


def made_up(datasets: list[str], seed: int, *, groups: int, submissions: int) -> list[Group]:
    """Submissions of recurring jobs, most of which overlap.

    Args:
        datasets: What is trained, in turn.
        seed: Of the random times.
        groups: Recurring jobs.
        submissions: Of each job.
    """
    return [
        Group(
            f"{datasets[number % len(datasets)]}-{number}",
            datasets[number % len(datasets)],
            tuple(_made_up(np.random.default_rng([seed, number, 4]), submissions)),
        )
        for number in range(groups)
    ]


def _made_up(rng: np.random.Generator, count: int) -> Iterator[Submission]:
    mean_s = 3600.0
    # From jobs whose runs follow each other to jobs that start five before the first has ended.
    interval_s = mean_s * rng.uniform(0.2, 1.5)
    start_s = 0.0
    for _ in range(count):
        ratio = float(rng.lognormal(-0.125, 0.5))  # of mean one
        yield Submission(start_s, start_s + ratio * mean_s, ratio)
        start_s += float(rng.exponential(interval_s))


def _submission(row: Row) -> Submission:
    start_s, end_s = row.number("start_time"), row.number("end_time")
    if end_s < start_s:
        raise row.error("end_time", f"at least start_time, {start_s:g}")
    return Submission(start_s, end_s, row.amount("runtime_ratio"))


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        if path.suffix == ".xz":
            with lzma.open(path, "rt", encoding="utf-8-sig", newline="") as file:
                yield file
        else:
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield file
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise SimulationError(f"{path}: cannot be read: {error}") from error
