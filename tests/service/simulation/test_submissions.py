"""A cluster's stream of submissions."""

from __future__ import annotations

import lzma
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
GROUPS = [
    Group("a", "cifar100", (Submission(20.5, 90.0, 0.5), Submission(100.0, 160.0, 1.5))),
    Group("b", "squad", (Submission(0.0, 10.0, 0.25),)),
]


def the_error(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(SimulationError) as caught:
        submissions.read(path)
    return str(caught.value)


def test_a_group_is_read_in_the_order_of_its_starts(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(FILE)
    assert submissions.read(path) == GROUPS


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv.xz"
    path.write_bytes(lzma.compress(FILE.encode()))
    assert submissions.read(path) == GROUPS


@pytest.mark.parametrize("column", FILE.splitlines()[0].split(","))
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = tmp_path / "groups.csv"
    error = the_error(path, FILE.replace(column, "other", 1))
    assert error.startswith(f"{path}, row 1: no column {column}")


@pytest.mark.parametrize(
    ("column", "text", "wanted"),
    [
        ("start_time", "soon", "a number"),
        ("end_time", "nan", "a number"),
        ("end_time", "99", "at least start_time, 100"),
        ("runtime_ratio", "0", "a number above zero, at most 1e+15"),
        ("runtime_ratio", "inf", "a number above zero, at most 1e+15"),
        ("runtime_ratio", "1e200", "a number above zero, at most 1e+15"),
    ],
)
def test_a_wrong_value_is_told_with_its_row(
    tmp_path: Path, column: str, text: str, wanted: str
) -> None:
    path = tmp_path / "groups.csv"
    lines = FILE.splitlines()
    values = lines[1].split(",")
    values[lines[0].split(",").index(column)] = text
    error = the_error(path, "\n".join([lines[0], ",".join(values), *lines[2:]]))
    assert error == f"{path}, row 2: {column} is {text!r}; make it {wanted}"


def test_a_group_trains_one_workload(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    error = the_error(path, FILE + "a,200,300,squad,1\n")
    assert error.startswith(f"{path}, row 5: dataset is 'squad'; make it 'cifar100'")


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.csv.xz"])
def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SimulationError, match=f"{name}: cannot be read"):
        submissions.read(tmp_path / name)


def test_a_file_that_is_not_compressed_is_an_error(tmp_path: Path) -> None:
    error = the_error(tmp_path / "groups.csv.xz", FILE)
    assert "cannot be read" in error


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
