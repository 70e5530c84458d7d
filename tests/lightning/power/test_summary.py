"""What is logged about measured limits: lines, a table, and figures for the loggers."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path

import pytest
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, expected, fit, power, zeus_warnings
from lightning.pytorch.loggers import CSVLogger


def test_a_line_for_each_limit_and_a_table_with_the_saving_are_logged(
    gpu: FakeGpu, gpu_meter: DriversClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(power(meter=gpu_meter, step_w=100), GpuNet(gpu))
    assert zeus_warnings(warned) == []
    lines = [r.message for r in caplog.records if r.message.startswith("zeus: power limit ")]
    assert [int(line.split()[3]) for line in lines] == [300, 200, 100]
    assert lines[0] == "zeus: power limit 300 W: 30 J and 100 ms a batch, 300 W on average"
    table = next(r.message for r in caplog.records if "limits measured, with" in r.message)
    energy = expected(gpu, 200)[0] / expected(gpu, 300)[0] - 1
    time = expected(gpu, 200)[1] / expected(gpu, 300)[1] - 1
    changes = f"energy {100 * energy:+.1f} % and time {100 * time:+.1f} %"
    assert f"* chosen by zeus-cost: 200 W, with {changes} relative to 300 W" in table
    assert re.search(r"^ +\* +200 ", table, re.MULTILINE)
    assert max(map(len, table.splitlines()[1:-1])) <= 80


def test_limit_watts_and_joules_per_step_are_logged(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    logger = CSVLogger(tmp_path)
    fit(power(meter=gpu_meter, step_w=100), GpuNet(gpu), logger=logger)
    rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    seen = [
        {name: float(value) for name, value in zip(names, row.split(","), strict=True) if value}
        for row in rows[1:]
    ]
    seen = [row for row in seen if "zeus/power_limit_w" in row]
    assert [row["zeus/power_limit_w"] for row in seen] == [300, 200, 100, 200]
    assert [row["step"] for row in seen] == [9, 15, 21, 21]
    for row in seen:
        limit_w = row["zeus/power_limit_w"]
        assert row["zeus/step_power_w"] == pytest.approx(limit_w, rel=1e-3)
        assert row["zeus/step_energy_j"] == pytest.approx(expected(gpu, int(limit_w))[0], rel=1e-3)
