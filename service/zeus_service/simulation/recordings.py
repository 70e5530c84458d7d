"""Recorded runs, in the format published with Zeus (NSDI 2023).

`summary_train.csv` has one row per run and target metric, `summary_power_{gpu}.csv` one per batch
size and power limit. As the authors do, this leaves out a batch size that has only one of the two:
it was not measured on that GPU, or does not fit its memory.

Missing or invalid files raise `Unusable`.
"""

import csv
import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import click
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError

from zeus_service.bandit.spec import MAX_AMOUNT
from zeus_service.errors import Unusable
from zeus_service.simulation.workload import Epoch, Setting, Workload

_TRAIN, _POWER = "summary_train.csv", "summary_power_"

PositiveAmount = Annotated[float, Field(gt=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class Row(BaseModel):
    """A row; a subclass has a field for each column that it needs."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)


AnyRow = TypeVar("AnyRow", bound=Row)


def read_rows(path: Path, model: type[AnyRow]) -> list[AnyRow]:
    """Read a CSV file with a header, which is row 1.

    Raises:
        Unusable: The file cannot be read, or a row is invalid.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            return [model.model_validate(values) for values in reader]
    except ValidationError as error:
        raise Unusable(f"{path}, row {reader.line_num}, {first_error(error)}") from error
    except (OSError, UnicodeError, csv.Error) as error:
        raise Unusable(f"{path}: cannot be read as CSV: {error}") from error


def first_error(error: ValidationError) -> str:
    """The first invalid field, what is wrong with it, and its value."""
    wrong = error.errors()[0]
    name = ".".join(map(str, wrong["loc"]))
    return f"{name}: {wrong['msg']} ({wrong['input']!r:.60})"


class Recipe(NamedTuple):
    """Which of the recorded runs are a workload, and how it is trained.

    Args:
        default_batch_size: If the GPU has no power data of it or larger ones, the largest of those
            that it has takes its place.
    """

    dataset: str
    network: str
    optimizer: str
    target_metric: float
    max_epochs: int
    default_batch_size: int


RECIPES = {
    recipe.dataset: recipe
    for recipe in (
        Recipe("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024),
        Recipe("imagenet", "resnet50", "adadelta", 0.65, 100, 256),
        Recipe("squad", "bert_base_uncased", "adamw", 84.0, 6, 32),
        Recipe("librispeech", "deepspeech2", "adamw", 40.0, 16, 256),
        Recipe("movielens-1m", "ncf", "adam", 0.41, 100, 1024),
        Recipe("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128),
    )
}
"""The workloads of the Zeus paper."""


class _Measured(Row):
    """What the rows of both files have."""

    dataset: str
    network: str
    optimizer: str
    batch_size: PositiveInt

    def belongs_to(self, recipe: Recipe) -> bool:
        """Whether this row was measured on a workload."""
        return (self.dataset, self.network, self.optimizer) == recipe[:3]


class _Run(_Measured):
    """A run and a target metric; the epoch is `nan` if the run never reached the target."""

    target_metric: FiniteFloat
    target_epoch: PositiveInt | Literal["nan"]


class _EpochAtLimit(_Measured):
    """An epoch at a power limit: watts, seconds, watts."""

    power_limit: PositiveAmount
    time_per_epoch: PositiveAmount
    average_power: PositiveAmount


def gpus(directory: Path) -> list[str]:
    """The GPUs whose power data a directory contains, at least one."""
    names = sorted(path.stem.removeprefix(_POWER) for path in directory.glob(f"{_POWER}*.csv"))
    if not names:
        raise Unusable(
            f"{directory}: no file {_POWER}GPU.csv here; name the directory of the recorded runs"
        )
    return names


def paper_recipes(directory: Path, gpu: str) -> list[Recipe]:
    """The paper's workloads that have both runs and power data for a GPU."""
    trained = {row.dataset for row in read_rows(directory / _TRAIN, _Run)}
    measured = {row.dataset for row in read_rows(directory / f"{_POWER}{gpu}.csv", _EpochAtLimit)}
    return [RECIPES[name] for name in sorted(trained & measured & RECIPES.keys())]


def read(directory: Path, gpu: str, recipe: Recipe) -> Workload:
    """Read one workload on one GPU; write to stderr if it lacks the default batch size."""
    train, power = directory / _TRAIN, directory / f"{_POWER}{gpu}.csv"
    runs: dict[int, list[float]] = {}
    for run in read_rows(train, _Run):
        if run.belongs_to(recipe) and run.target_metric == recipe.target_metric:
            target_epoch = math.inf if run.target_epoch == "nan" else float(run.target_epoch)
            runs.setdefault(run.batch_size, []).append(target_epoch)
    measured = read_rows(power, _EpochAtLimit)
    epochs: dict[int, dict[float, Epoch]] = {}
    for row in measured:
        if row.belongs_to(recipe):
            energy_j = row.time_per_epoch * row.average_power
            limits = epochs.setdefault(row.batch_size, {})
            limits[row.power_limit] = Epoch(row.time_per_epoch, energy_j)
    sizes = sorted(runs.keys() & epochs.keys())
    default = min(recipe.default_batch_size, max(epochs, default=recipe.default_batch_size))
    for path, found in ((train, runs), (power, epochs)):
        if default not in found:
            raise Unusable(
                f"{'/'.join(recipe[:3])} with the target {recipe.target_metric:g}: {path} has the "
                f"batch sizes {sorted(found)}, not the default {default}"
            )
    if default != recipe.default_batch_size:
        click.echo(
            f"{recipe.dataset} {gpu}: no power data for the default batch size "
            f"{recipe.default_batch_size}; using {default}, the largest measured",
            err=True,
        )
    workload = Workload(
        name=recipe.dataset,
        gpu=gpu,
        settings={size: Setting(tuple(runs[size]), epochs[size]) for size in sizes},
        default_batch_size=default,
        max_epochs=recipe.max_epochs,
        max_power_w=max(row.power_limit for row in measured),
    )
    if math.isinf(workload.expected_cost(workload.oracle(0.5), 0.5)):
        raise Unusable(
            f"{train}: no run of {recipe.dataset} with the batch sizes {sizes} reaches the target "
            f"of {recipe.target_metric:g} within {recipe.max_epochs} epochs; allow more epochs"
        )
    return workload
