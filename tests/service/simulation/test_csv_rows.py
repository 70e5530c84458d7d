"""A file that is wrong is told with its name, its row, and what is wanted."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from zeus_service.simulation import SimulationError
from zeus_service.simulation.csv_rows import Row, rows_of

COLUMNS = ("name", "value")
ABOVE_ZERO = "make it a number above zero, at most 1e+15"
WHOLE = "make it a whole number above zero"


def the_error(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(SimulationError) as caught:
        list(rows_of(path, COLUMNS))
    return str(caught.value)


def test_values_are_read_by_the_names_of_columns_whether_compressed_or_not(tmp_path: Path) -> None:
    text = "value,more,name\n 2.0 ,x, eight \n"
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8-sig")
    (tmp_path / "rows.csv.xz").write_bytes(lzma.compress(text.encode()))
    for name in ("rows.csv", "rows.csv.xz"):
        (row,) = rows_of(tmp_path / name, COLUMNS)
        assert (row.line, row.text("name")) == (2, "eight")
        assert row.number("value") == row.amount("value") == row.whole("value") == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name\na\n", ", row 1: no column value; add it"),
        (b"", ", row 1: no column name, value; add it"),
        (b"name,value\n", ", row 2: no rows below the header"),
        (b"name,value\na,1\nb\n", ", row 3: it has not as many values as row 1"),
        (b"name,value\na,1,2\n", ", row 2: it has not as many values as row 1"),
        (b"\xff\xfe\x00", ": not a CSV file in UTF-8"),
        (b'name,value\na,"1\n', ": not a CSV file in UTF-8"),
    ],
)
def test_a_file_of_another_form_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.csv"
    assert the_error(path, content).startswith(f"{path}{message}")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in the_error(tmp_path / "rows.csv.xz", b"not compressed")
    for name in ("nowhere.csv", "nowhere.csv.xz"):
        with pytest.raises(SimulationError, match=f"{name}: cannot be read: No such file"):
            list(rows_of(tmp_path / name, COLUMNS))


@pytest.mark.parametrize(
    ("method", "wrong", "wanted"),
    [
        ("number", ["", "x", "inf", "nan"], "make it a number"),
        ("amount", ["", "x", "inf", "nan", "0", "-1", "1e200"], ABOVE_ZERO),
        ("whole", ["", "x", "inf", "nan", "0", "-1", "1.5"], WHOLE),
    ],
)
def test_a_wrong_number_is_told_with_its_row(method: str, wrong: list[str], wanted: str) -> None:
    for text in wrong:
        row = Row(Path("rows.csv"), 3, {"value": text})
        with pytest.raises(SimulationError) as caught:
            getattr(row, method)("value")
        assert str(caught.value) == f"rows.csv, row 3: value is {text!r}; {wanted}"
