"""Rows of a CSV file, with values that are checked, and errors that name the row."""

import csv
import lzma
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from zeus_service.bandit.spec import MAX_AMOUNT
from zeus_service.simulation import SimulationError


@dataclass(frozen=True)
class Row:
    """A row; the header is row 1. The values are checked: an invalid one is a `SimulationError`."""

    path: Path
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        """The value without blanks around it."""
        return self.values[column].strip()

    def number(self, column: str, wanted: str = "a number", minimum: float = -math.inf) -> float:
        """A finite number above `minimum`."""
        with suppress(ValueError):
            value = float(self.text(column))
            if minimum < value < math.inf:
                return value
        raise self.error(column, wanted)

    def amount(self, column: str) -> float:
        """A number above zero, at most `MAX_AMOUNT`."""
        wanted = f"a number above zero, at most {MAX_AMOUNT:g}"
        value = self.number(column, wanted, 0.0)
        if value > MAX_AMOUNT:
            raise self.error(column, wanted)
        return value

    def whole(self, column: str) -> int:
        """A whole number above zero."""
        wanted = "a whole number above zero"
        value = self.number(column, wanted, 0.0)
        if not value.is_integer():
            raise self.error(column, wanted)
        return int(value)

    def error(self, column: str, wanted: str) -> SimulationError:
        """The error for an invalid value."""
        return SimulationError(
            f"{self.path}, row {self.line}: {column} is {self.text(column)!r}; make it {wanted}"
        )


def rows_of(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """Read the rows of a CSV file with at least these columns; `.xz` is decompressed.

    Raises:
        SimulationError: The file cannot be read, is not a CSV file, lacks a column, or has no rows.
    """
    open_text: Callable[..., TextIO] = lzma.open if path.suffix == ".xz" else open
    empty = True
    try:
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise SimulationError(
                    f"{path}, row 1: no column {', '.join(missing)}; add it, or name a file that "
                    f"has the columns {', '.join(columns)}"
                )
            for values in reader:
                empty = False
                if None in values or None in values.values():
                    raise SimulationError(
                        f"{path}, row {reader.line_num}: it has not as many values as row 1 has "
                        "columns; complete it, or remove it"
                    )
                yield Row(path, reader.line_num, values)
    except (OSError, lzma.LZMAError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SimulationError(f"{path}: cannot be read: {reason}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SimulationError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if empty:
        raise SimulationError(f"{path}, row 2: no rows below the header; is the file complete?")
