"""Where a run finds an earlier power profile, and where it stores its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvml import FakeGpu
from gpu_programs import (
    DriversClock,
    GpuNet,
    ManyBatches,
    fit,
    phases,
    power,
    zeus_warnings,
)
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from programs import trainer

from zeus_lightning.power.profile import PowerProfile


def test_a_profile_file_is_written_and_the_next_run_applies_it_from_its_first_step(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "profiles" / "a.json"
    first = power(meter=gpu_meter, profile_path=path)
    fit(first, GpuNet(gpu))
    assert PowerProfile.from_json(json.loads(path.read_text())) == first.profile
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]
    second, net = power(meter=gpu_meter, profile_path=str(path)), GpuNet(gpu)
    fit(second, net)
    assert phases(net.limits_w) == [(225, 200)]
    assert not second.profiled
    assert gpu.limit_mw == 250_000


def test_a_file_of_another_batch_size_does_not_count_and_is_replaced(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=gpu_meter, profile_path=path), GpuNet(gpu))
    callback = power(meter=gpu_meter, profile_path=path)
    fit(callback, GpuNet(gpu), data=ManyBatches(batch_size=16))
    assert callback.profiled
    assert PowerProfile.from_json(json.loads(path.read_text())).batch_size == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("not JSON", "it is not JSON"),
        ({"device_model": "Another GPU"}, "'Another GPU'.*'Fake H100'"),
        ({"num_devices": 2}, "has num_devices 2, but this run's is 1; pass another path"),
    ],
)
def test_a_profile_file_that_cannot_be_used_is_one_warning_stays_as_it_is_and_does_not_count(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=gpu_meter, profile_path=path, step_w=100), GpuNet(gpu))
    changed = change
    if isinstance(change, dict):
        changed = json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(changed)
    callback = power(meter=gpu_meter, profile_path=path, step_w=100)
    with pytest.warns(UserWarning, match="profile_path") as warned:
        fit(callback, GpuNet(gpu))
    assert len(zeus_warnings(warned)) == 1
    assert re.search(message, zeus_warnings(warned)[0])
    assert callback.profiled
    assert callback.limit_w == 200
    assert path.read_text() == changed


def test_a_profile_file_that_cannot_be_written_is_one_warning_and_the_limit_is_applied(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    callback = power(meter=gpu_meter, profile_path=tmp_path / "file" / "a.json", step_w=100)
    with pytest.warns(UserWarning, match="cannot be written to profile_path") as warned:
        fit(callback, GpuNet(gpu))
    assert len(zeus_warnings(warned)) == 1
    assert callback.limit_w == 200


class Batches:
    """Batches of a size that nothing tells."""

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return ([torch.randn(8, 4)] for _ in range(200))


@pytest.mark.parametrize("changes", [False, True])
def test_with_a_batch_size_that_is_unknown_or_changes_no_profile_is_stored(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, changes: bool
) -> None:
    path = tmp_path / "a.json"
    callback = power(meter=gpu_meter, step_w=100, profile_path=path)
    others = [GradientAccumulationScheduler({0: 1, 2: 4})] if changes else []
    with pytest.warns(UserWarning, match="batch size is unknown or changes during the run"):
        trainer(callback, *others, max_epochs=1).fit(
            GpuNet(gpu), ManyBatches() if changes else Batches()
        )
    assert callback.limit_w == 200
    assert not path.exists()
