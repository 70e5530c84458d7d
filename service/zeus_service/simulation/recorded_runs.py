"""Recorded runs in the format published with Zeus (NSDI 2023).

`summary_train.csv` has one row per run and target metric, `summary_power_{gpu}.csv` one per batch
size and power limit. As the authors do, this leaves out a batch size that has only one of the two:
it was not measured on that GPU, or does not fit its memory. Missing or invalid files raise
`SimulationError`.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from zeus_service.simulation import SimulationError
from zeus_service.simulation.csv_rows import Row, rows_of
from zeus_service.simulation.workload import Epoch, Setting, Workload

_TRAIN = "summary_train.csv"
_IDENTITY = ("dataset", "network", "optimizer")
_TRAIN_COLUMNS = (*_IDENTITY, "batch_size", "target_metric", "target_epoch")
_POWER_COLUMNS = (*_IDENTITY, "batch_size", "power_limit", "time_per_epoch", "average_power")


@dataclass(frozen=True)
class Recipe:
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


def recipe(
    name: str,
    *,
    target: float | None = None,
    max_epochs: int | None = None,
    default: int | None = None,
) -> Recipe:
    """The recipe of a workload: a dataset of `RECIPES`, or `DATASET/NETWORK/OPTIMIZER`.

    The other arguments replace the paper's; any other workload needs them all.
    """
    dataset, *rest = name.split("/")
    paper = RECIPES.get(dataset)
    if paper and rest in ([], [paper.network, paper.optimizer]):
        rest = [paper.network, paper.optimizer]
        target = paper.target_metric if target is None else target
        max_epochs = max_epochs or paper.max_epochs
        default = default or paper.default_batch_size
    if len(rest) != 2 or target is None or max_epochs is None or default is None:
        raise SimulationError(
            f"workload {name!r} is not one of the Zeus paper's ({', '.join(RECIPES)}); give it as "
            "DATASET/NETWORK/OPTIMIZER with --target, --max-epochs and --default-batch-size"
        )
    return Recipe(dataset, rest[0], rest[1], target, max_epochs, default)


def gpus(directory: Path) -> list[str]:
    """The GPUs whose power data a directory contains, at least one."""
    prefix = "summary_power_"
    names = sorted(path.stem.removeprefix(prefix) for path in directory.glob(f"{prefix}*.csv"))
    if not names:
        raise SimulationError(
            f"{directory}: no file {prefix}GPU.csv here; name the directory of the recorded runs"
        )
    return names


def paper_workloads(directory: Path, gpu: str) -> list[str]:
    """The paper's workloads that have both runs and power data for a GPU."""
    trained = {row.text("dataset") for row in rows_of(directory / _TRAIN, _TRAIN_COLUMNS)}
    power = _power_path(directory, gpu)
    measured = {row.text("dataset") for row in rows_of(power, _POWER_COLUMNS)}
    return sorted(trained & measured & RECIPES.keys())


def read(directory: Path, gpu: str, recipe: Recipe) -> Workload:
    """Read one workload on one GPU."""
    train, power = directory / _TRAIN, _power_path(directory, gpu)
    runs = _runs(train, recipe)
    epochs, max_power_w = _epochs(power, recipe)
    sizes = sorted(runs.keys() & epochs.keys())
    default = min(recipe.default_batch_size, max(epochs))
    if default not in sizes:
        raise SimulationError(
            f"{recipe.dataset}: the default batch size {default} needs runs and power data; "
            f"{train} has runs of {sorted(runs)}, {power} has power data of {sorted(epochs)}; "
            "record what is missing, or take a default that has both"
        )
    notes = []
    if default != recipe.default_batch_size:
        notes.append(
            f"{recipe.dataset} {gpu}: no power data of the default batch size "
            f"{recipe.default_batch_size} or larger ones: the largest measured, {default}, takes "
            "its place"
        )
    if left_out := sorted(runs.keys() - epochs.keys()):
        notes.append(
            f"{recipe.dataset} {gpu}: batch sizes {', '.join(map(str, left_out))} have runs but no "
            "power data: left out"
        )
    workload = Workload(
        name=recipe.dataset,
        gpu=gpu,
        settings={size: Setting(tuple(runs[size]), epochs[size]) for size in sizes},
        default_batch_size=default,
        max_epochs=recipe.max_epochs,
        max_power_w=max_power_w,
        notes=tuple(notes),
    )
    if math.isinf(workload.expected_cost(workload.oracle(0.5), 0.5)):
        raise SimulationError(
            f"{train}: no run of {recipe.dataset} with the batch sizes {sizes} reaches the target "
            f"of {recipe.target_metric:g} within {recipe.max_epochs} epochs; take another target "
            "or more epochs"
        )
    return workload


def _power_path(directory: Path, gpu: str) -> Path:
    path = directory / f"summary_power_{gpu}.csv"
    if not path.is_file():
        raise SimulationError(
            f"{path}: no such file; the GPUs with power data are {', '.join(gpus(directory))}"
        )
    return path


def _runs(path: Path, recipe: Recipe) -> dict[int, list[float]]:
    """For every batch size, the epochs in which its runs reached the target; infinite: never."""
    runs: dict[int, list[float]] = {}
    targets: set[float] = set()
    for row in _of_recipe(path, list(rows_of(path, _TRAIN_COLUMNS)), recipe):
        target = row.number("target_metric")
        targets.add(target)
        if target == recipe.target_metric:
            never = row.text("target_epoch").lower() in ("nan", "+nan", "-nan")
            epoch = math.inf if never else row.whole("target_epoch")
            runs.setdefault(row.whole("batch_size"), []).append(epoch)
    if not runs:
        raise SimulationError(
            f"{path}: no row of {recipe.dataset} has the target {recipe.target_metric:g}; those "
            f"recorded are {', '.join(f'{target:g}' for target in sorted(targets))}"
        )
    return runs


def _epochs(path: Path, recipe: Recipe) -> tuple[dict[int, dict[float, Epoch]], float]:
    """Epochs by batch size and power limit, and the largest limit in the file."""
    epochs: dict[int, dict[float, Epoch]] = {}
    rows = list(rows_of(path, _POWER_COLUMNS))
    for row in _of_recipe(path, rows, recipe):
        limit_w, time_s = row.amount("power_limit"), row.amount("time_per_epoch")
        limits = epochs.setdefault(row.whole("batch_size"), {})
        if limit_w in limits:
            raise SimulationError(
                f"{path}, row {row.line}: a second row for batch size {row.text('batch_size')} at "
                f"{limit_w:g} W; keep one of them"
            )
        limits[limit_w] = Epoch(time_s, time_s * row.amount("average_power"))
    return epochs, max(row.amount("power_limit") for row in rows)


def _of_recipe(path: Path, rows: list[Row], recipe: Recipe) -> list[Row]:
    """The rows of a workload."""
    names = ["/".join(row.text(column) for column in _IDENTITY) for row in rows]
    wanted = f"{recipe.dataset}/{recipe.network}/{recipe.optimizer}"
    found = [row for row, name in zip(rows, names, strict=True) if name == wanted]
    if not found:
        raise SimulationError(
            f"{path}: no row of workload {wanted}; those there are {', '.join(sorted(set(names)))}"
        )
    return found
