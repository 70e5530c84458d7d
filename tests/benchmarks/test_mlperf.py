"""MLPerf's reference convergence points as workloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mlperf import in_reports, read, workloads

HEADER = "benchmark,round,batch_size,unit,to_target\n"


def rows(*values: tuple[int, float]) -> str:
    return "".join(f"model,training_1.0.0,{size},epochs,{value}\n" for size, value in values)


def test_values_in_another_unit_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "convergence.csv"
    file.write_text(HEADER + rows((64, 8), (32, 7), (32, 9), (32, 46), (64, 39)))
    assert read(file) == {"model": {32: [7, 9], 64: [8, 39]}}


def test_whole_epochs_stay_and_samples_become_at_least_twenty_reports() -> None:
    assert in_reports({32: [7.0, 9.0]}) == {32: (7.0, 9.0)}
    assert in_reports({32: [0.65, 0.7]}) == {32: (20.0, 22.0)}
    assert in_reports({32: [159744.0, 172032.0]}) == {32: (20.0, 22.0)}


def test_each_cost_of_an_epoch_and_each_default_is_a_workload() -> None:
    made = workloads("model", {16: [4.0], 32: [5.0], 64: [8.0]})
    assert [each.default_batch_size for each in made] == 3 * [16, 32, 64]
    times = [each.settings[32].epochs[200.0].time_s for each in made[::3]]
    assert times == pytest.approx([1.1, 1.5, 3.0])
    assert {each.max_epochs for each in made} == {24}
