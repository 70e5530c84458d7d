"""Writes workloads in the published format, for tests that read it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from zeus_service.simulation.recordings import Recipe
from zeus_service.simulation.workload import Epoch, Setting, Workload

TRAIN = "summary_train.csv"
POWER = "summary_power_tiny.csv"
RECIPE = Recipe("letters", "net", "sgd", 0.5, 20, 16)


def workload() -> Workload:
    """Three batch sizes, two power limits; 16 is the default, 8 the best, 32 too slow to learn."""

    def epochs(time_s: float) -> dict[float, Epoch]:
        return {100.0: Epoch(time_s * 1.25, time_s * 100), 200.0: Epoch(time_s, time_s * 160)}

    return Workload(
        name="letters",
        gpu="tiny",
        settings={
            8: Setting((5.0, 6.0, 7.0), epochs(4.0)),
            16: Setting((8.0, 9.0, 10.0), epochs(3.0)),
            32: Setting((19.0, math.inf, 25.0), epochs(2.5)),
        },
        default_batch_size=16,
        max_epochs=20,
        max_power_w=200.0,
    )


def write(directory: Path, written: Workload, recipe: Recipe = RECIPE) -> None:
    """Write a workload to `summary_train.csv` and `summary_power_{gpu}.csv`."""
    identity = dict(zip(("dataset", "network", "optimizer"), recipe, strict=False))
    train = [
        {
            **identity,
            "batch_size": size,
            "learning_rate": "1e-3",
            "run": run,
            "target_metric": recipe.target_metric,
            "target_epoch": "nan" if math.isinf(epoch) else int(epoch),
        }
        for size, setting in written.settings.items()
        for run, epoch in enumerate(setting.target_epochs, 1)
    ]
    power = [
        {
            **identity,
            "batch_size": size,
            "power_limit": f"{limit:g}",
            "time_per_epoch": repr(epoch.time_s),
            "average_power": repr(epoch.energy_j / epoch.time_s),
        }
        for size, setting in written.settings.items()
        for limit, epoch in setting.epochs.items()
    ]
    for name, rows in ((TRAIN, train), (f"summary_power_{written.gpu}.csv", power)):
        with (directory / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
