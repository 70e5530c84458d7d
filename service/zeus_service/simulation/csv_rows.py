"""Rows of a CSV file, each checked by a pydantic model."""

import csv
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zeus_service.bandit.spec import MAX_AMOUNT
from zeus_service.simulation import SimulationError, first_error

PositiveAmount = Annotated[float, Field(gt=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class Row(BaseModel):
    """A row; a subclass has a field for each column that it needs."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)


AnyRow = TypeVar("AnyRow", bound=Row)


def read_rows(path: Path, model: type[AnyRow]) -> list[AnyRow]:
    """Read a CSV file with a header, which is row 1; `.xz` is decompressed.

    Raises:
        SimulationError: The file cannot be read, or a row is invalid.
    """
    open_text: Callable[..., TextIO] = lzma.open if path.suffix == ".xz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            return [model.model_validate(values) for values in reader]
    except ValidationError as error:
        raise SimulationError(f"{path}, row {reader.line_num}, {first_error(error)}") from error
    except (OSError, EOFError, lzma.LZMAError, UnicodeError, csv.Error) as error:
        raise SimulationError(f"{path}: cannot be read as CSV: {error}") from error
