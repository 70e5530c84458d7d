"""Rows of a CSV file that know where they stand, so that an error can say so."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zeus_service.simulation.errors import SimulationError


@dataclass(frozen=True)
class Row:
    """A row; the header is row 1."""

    path: Path
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        """A value as it stands."""
        return self.values[column].strip()

    def number(self, column: str) -> float:
        """A finite number."""
        value = self._float(column)
        if value is None or not math.isfinite(value):
            raise self.error(column, "a number")
        return value

    def amount(self, column: str) -> float:
        """A number above zero."""
        value = self._float(column)
        if value is None or not 0 < value < math.inf:
            raise self.error(column, "a number above zero")
        return value

    def whole(self, column: str) -> int:
        """A whole number above zero."""
        value = self._float(column)
        if value is None or not 0 < value < math.inf or not value.is_integer():
            raise self.error(column, "a whole number above zero")
        return int(value)

    def missing(self, column: str) -> bool:
        """Whether the value is `nan`."""
        value = self._float(column)
        return value is not None and math.isnan(value)

    def error(self, column: str, wanted: str) -> SimulationError:
        """The error of a value that is not what it should be."""
        return SimulationError(
            f"{self.path}, row {self.line}: {column} is {self.text(column)!r}; make it {wanted}"
        )

    def _float(self, column: str) -> float | None:
        try:
            return float(self.text(column))
        except ValueError:
            return None


def rows_of(path: Path, lines: Iterable[str], columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a CSV file, which has these columns and perhaps more.

    Raises:
        SimulationError: It is not such a file, or has no rows.
    """
    reader = csv.DictReader(lines, strict=True)
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise SimulationError(
                f"{path}, row 1: no column {', '.join(missing)}; add it, or name a file that has "
                f"the columns {', '.join(columns)}"
            )
        empty = True
        for values in reader:
            empty = False
            if None in values or None in values.values():
                raise SimulationError(
                    f"{path}, row {reader.line_num}: it has not as many values as row 1 has "
                    "columns; complete it, or remove it"
                )
            yield Row(path, reader.line_num, values)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SimulationError(f"{path}: is no CSV file in UTF-8: {error}") from error
    if empty:
        raise SimulationError(f"{path}, row 2: no rows below the header; is the file complete?")
