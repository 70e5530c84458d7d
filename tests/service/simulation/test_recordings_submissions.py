"""A cluster's stream of submissions."""

from __future__ import annotations

from pathlib import Path

import pytest
from zeus_service.simulation import SimulationError, recordings
from zeus_service.simulation.recordings import Group, Submission

FILE = """\
group,start_time,end_time,dataset,runtime_ratio
a,100.0,160.0,cifar100,1.5
b,0,10,squad,0.25
a,20.5,90,cifar100,0.5
"""


def test_a_group_is_read_in_the_order_of_its_starts(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(FILE)
    assert recordings.read_groups(path) == [
        Group("a", "cifar100", (Submission(20.5, 90.0, 0.5), Submission(100.0, 160.0, 1.5))),
        Group("b", "squad", (Submission(0.0, 10.0, 0.25),)),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,soon,160,cifar100,1", "start_time: Input should be a valid number"),
        ("a,100,nan,cifar100,1", "end_time: Input should be a finite number"),
        ("a,100,160,cifar100,0", "runtime_ratio: Input should be greater than 0"),
    ],
)
def test_an_invalid_value_is_reported_with_its_row(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(f"{FILE}{row}\n")
    with pytest.raises(SimulationError) as caught:
        recordings.read_groups(path)
    assert str(caught.value).startswith(f"{path}, row 5, {message}")
