"""An invalid file is reported with its name, its row, and what is wrong."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from zeus_service.simulation import SimulationError
from zeus_service.simulation.recordings import PositiveAmount, Row, read_rows


class Example(Row):
    name: str
    value: PositiveAmount


def the_error(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(SimulationError) as caught:
        read_rows(path, Example)
    return str(caught.value)


def test_values_are_read_by_the_names_of_columns_whether_compressed_or_not(tmp_path: Path) -> None:
    text = "value,more,name\n 2.0 ,x, eight \n"
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8-sig")
    (tmp_path / "rows.csv.xz").write_bytes(lzma.compress(text.encode()))
    for name in ("rows.csv", "rows.csv.xz"):
        assert read_rows(tmp_path / name, Example) == [Example(name="eight", value=2.0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name\na\n", ", row 2, value: Field required"),
        (b"name,value\na,1\nb\n", ", row 3, value: Input should be a valid number"),
        (b"name,value\na,\n", ", row 2, value: Input should be a valid number"),
        (b"name,value\na,0\n", ", row 2, value: Input should be greater than 0 ('0')"),
        (b"name,value\na,nan\n", ", row 2, value: Input should be a finite number ('nan')"),
        (b"name,value\na,1e200\n", ", row 2, value: Input should be less than or equal to"),
        (b"\xff\xfe\x00", ": cannot be read as CSV"),
        (b'name,value\na,"1\n', ": cannot be read as CSV"),
    ],
)
def test_an_invalid_file_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.csv"
    assert the_error(path, content).startswith(f"{path}{message}")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    assert "cannot be read" in the_error(tmp_path / "rows.csv.xz", b"not compressed")
    assert "cannot be read" in the_error(tmp_path / "rows.csv.xz", lzma.compress(b"name")[:-9])
    for name in ("nowhere.csv", "nowhere.csv.xz"):
        with pytest.raises(SimulationError, match=f"{name}: cannot be read .*No such file"):
            read_rows(tmp_path / name, Example)
