"""A cluster's recorded stream of job submissions.

The format is that of the groups of recurring jobs in Alibaba's cluster trace, as published
with Zeus (NSDI 2023): `group,start_time,end_time,dataset,runtime_ratio`, as `.csv` or `.csv.xz`.
"""

from dataclasses import dataclass
from pathlib import Path

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
