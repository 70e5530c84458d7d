"""The conversion of MLCommons' reference convergence points."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.mlperf_convert import FILES, Run, newest, runs_of


def write(root: Path, round_: str, size: int, values: list[float]) -> None:
    folder = root / "mlperf_logging" / "rcp_checker" / round_
    folder.mkdir(parents=True)
    entry = {"Benchmark": "model", "BS": size, "Epochs to converge": values}
    (folder / "rcps_model.json").write_text(json.dumps({"model_ref": entry}))


def test_the_newest_round_of_a_benchmark_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "1.0.0", 8, [3])
    write(tmp_path, "training_9.0.0", 16, [4])
    write(tmp_path, "training_10.0.0", 32, [5, 0.5])
    runs = [run for file in tmp_path.glob(FILES) for run in runs_of(file)]
    assert len(runs) == 4
    assert newest(runs) == [
        Run("model", "training_10.0.0", 32, "epochs", 5),
        Run("model", "training_10.0.0", 32, "epochs", 0.5),
    ]
