"""A cluster's stream of submissions."""

from __future__ import annotations

from pathlib import Path

import pytest
from zeus_service.simulation import SimulationError, submissions
from zeus_service.simulation.submissions import Group, Submission

FILE = """\
group,start_time,end_time,dataset,runtime_ratio
a,100.0,160.0,cifar100,1.5
b,0,10,squad,0.25
a,20.5,90,cifar100,0.5
"""


def test_a_group_is_read_in_the_order_of_its_starts(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(FILE)
    assert submissions.read_groups(path) == [
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
        submissions.read_groups(path)
    assert str(caught.value).startswith(f"{path}, row 5, {message}")


def test_synthetic_submissions_overlap_and_take_as_long_as_their_ratio_says() -> None:
    groups = submissions.synthetic_groups(["x", "y"], 1, groups=10, submissions=50)
    assert groups == submissions.synthetic_groups(["x", "y"], 1, groups=10, submissions=50)
    assert [group.dataset for group in groups] == ["x", "y"] * 5
    assert len({group.name for group in groups}) == 10
    overlaps = 0
    for group in groups:
        starts = [each.start_s for each in group.submissions]
        assert starts == sorted(starts)
        ends = [each.end_s for each in group.submissions]
        overlaps += sum(end > start for end, start in zip(ends, starts[1:], strict=False))
        for each in group.submissions:
            assert each.end_s - each.start_s == pytest.approx(each.runtime_ratio * 3600)
    assert 100 < overlaps < 490
