"""MLPerf's reference convergence points as workloads: how industrial models converge.

MLCommons publishes how much training its reference implementations took to the target quality at
each global batch size, but no times or energies. `mlperf_convert.py` writes the CSV file that is
read here. What is not in it is stated:

- An epoch costs `1 + h * middle / batch_size`, with `h` of each of `STEP_SHARES` and `middle` the
  geometric mean of the model's batch sizes: a fixed cost per sample, and one per step.
- Most models count samples or fractions of an epoch, which the simulator takes as whole epochs:
  their values are divided by the same number, so that the fewest becomes `FEWEST`, and rounded up,
  as training stops at an evaluation. Values of whole epochs stay as they are.
- The defaults are the smallest, the middle and the largest batch size, and a run fails after
  `MOST` times the largest median of a batch size.
- Values over five times a model's median are in another unit, and dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median

from excess import Case
from pydantic import PositiveInt
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.recordings import PositiveAmount, Row, read_rows
from zeus_service.simulation.workload import Epoch, Setting, Workload

STEP_SHARES = (0.1, 0.5, 2.0)
RECURRENCES = 100
FEWEST = 20
MOST = 3
_POWER_W = 200.0

Runs = dict[int, list[float]]
"""What each run took to the target, by the batch size."""


class _Run(Row):
    benchmark: str
    batch_size: PositiveInt
    to_target: PositiveAmount


def cases(file: Path, policies: Sequence[str], seeds: Sequence[int]) -> list[Case]:
    """All replays; a model is a row."""
    return [
        Case(model, Experiment(workload, workload.spec(policy=policy, seed=seed), RECURRENCES))
        for model, runs in read(file).items()
        for workload in workloads(model, runs)
        for policy in policies
        for seed in seeds
    ]


def read(file: Path) -> dict[str, Runs]:
    """Read the runs of each model; raise `Unusable` if the file is invalid."""
    models: dict[str, Runs] = {}
    for row in read_rows(file, _Run):
        models.setdefault(row.benchmark, {}).setdefault(row.batch_size, []).append(row.to_target)
    return {model: _in_one_unit(runs) for model, runs in models.items()}


def _in_one_unit(runs: Runs) -> Runs:
    most = 5 * median(value for values in runs.values() for value in values)
    kept = {size: [value for value in runs[size] if value <= most] for size in sorted(runs)}
    return {size: values for size, values in kept.items() if values}


def workloads(model: str, runs: Runs) -> list[Workload]:
    """A model with each cost of an epoch and each default."""
    sizes = list(runs)
    middle = geometric_mean(sizes)
    epochs = in_reports(runs)
    most = math.ceil(MOST * max(median(values) for values in epochs.values()))
    made = []
    for share in STEP_SHARES:
        settings = {}
        for size, targets in epochs.items():
            epoch_s = 1 + share * middle / size
            settings[size] = Setting(targets, {_POWER_W: Epoch(epoch_s, _POWER_W * epoch_s)})
        made += [
            Workload(model, f"h={share:g}", settings, default, most, _POWER_W)
            for default in (sizes[0], sizes[len(sizes) // 2], sizes[-1])
        ]
    return made


def in_reports(runs: Runs) -> dict[int, tuple[float, ...]]:
    """Turn what runs took into whole numbers of reports to the policy."""
    values = [value for each in runs.values() for value in each]
    whole = all(value == int(value) for value in values) and max(values) < 1000
    unit = 1.0 if whole else min(values) / FEWEST
    return {
        size: tuple(float(math.ceil(value / unit - 1e-9)) for value in each)
        for size, each in runs.items()
    }
