"""`PowerLimit` around a loop on the fake GPU: it does what the callback does in a Trainer."""

from __future__ import annotations

import csv
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_nvml import FakeGpu
from forked import default_sigterm
from gpu_programs import (
    DriversClock,
    EachLimit,
    assert_restored,
    expected,
    phases,
)
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from programs import new_job, recurrence
from service_process import ServiceProcess
from waiting import LIMIT_S

from zeus_lightning import PowerLimit, ZeusConfigError, ZeusPowerError

SHORT: dict[str, Any] = {
    "selector": EachLimit(),
    "warmup_steps": 2,
    "profile_steps": 4,
    "min_seconds": 0.1,
    "batch_size": 8,
}


def train(
    power: PowerLimit, gpu: FakeGpu, batches: int = 200, then: Callable[[int], object] | None = None
) -> list[float]:
    """Train without a Trainer; the limits in force in each batch."""
    limits_w = []
    with power:
        for batch in range(1, batches + 1):
            limits_w.append(gpu.limit_mw / 1000)
            gpu.run(0.1)
            power.step()
            if then is not None:
                then(batch)
    return limits_w


@pytest.mark.parametrize("has_gpu", [True, False])
def test_it_is_entered_once_at_a_time_and_stepped_within(
    gpu: FakeGpu, gpu_meter: DriversClock, has_gpu: bool
) -> None:
    power = PowerLimit(**SHORT, step_w=100, meter=gpu_meter if has_gpu else "auto")

    def enter_again(_: int) -> None:
        with pytest.raises(ZeusConfigError, match="already in use"), power:
            pass

    for _ in range(2):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            train(power, gpu, 50, then=enter_again)
        messages = [str(each.message) for each in warned]
        assert [text for text in messages if "power-limit search disabled" in text] == (
            [] if has_gpu else messages
        )
        assert (power.limit_w is not None) == power.profiled == has_gpu
        with pytest.raises(ZeusConfigError, match="outside `with PowerLimit"):
            power.step()
    if has_gpu:
        assert_restored(gpu)


def test_what_comes_after_a_pause_is_in_no_measurement(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    power = PowerLimit(**SHORT, step_w=100, meter=gpu_meter)

    def validate(batch: int) -> None:
        if batch % 15 == 0:
            power.pause()
            gpu.run(5)  # a validation, and a checkpoint
            power.pause()

    limits_w = train(power, gpu, then=validate)
    assert power.profile is not None
    for point in power.profile.points:
        energy_j, time_s = expected(gpu, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=1e-3)
        assert point.time_s == pytest.approx(time_s, rel=1e-6)
    # 10 batches, 5 of 200 W cut by the pause, 1 that begins before it is over, and 6 again
    assert phases(limits_w) == [(300, 10), (200, 5 + 1 + 6), (100, 6), (200, 200 - 28)]


def test_a_short_loop_measures_fewer_limits(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    measured = []
    for steps in (60, None):
        options = SHORT | {"selector": "zeus-cost", "steps": steps}
        power = PowerLimit(**options, meter=gpu_meter)
        train(power, gpu)
        assert power.profile is not None
        measured.append(len(power.profile.points))
    assert measured[0] < measured[1]


def test_beside_a_recurrence_it_has_its_batch_size_eta_and_service(
    service: ServiceProcess, gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    job = new_job()
    for run_number in range(2):
        run = recurrence(service.url, job, batch_sizes=[16], eta_knob=1)
        options = {key: value for key, value in SHORT.items() if key != "batch_size"}
        power = PowerLimit(**options, meter=gpu_meter, run=run, steps=800)
        with run:
            train(power, gpu)
            run.report(0.95)
        assert power.limit_w == 100  # the lowest energy, as eta_knob=1 has it
        assert power.profiled == (run_number == 0)
        assert power.profile is not None
        assert power.profile.batch_size == 16


def test_fabric_has_the_device_and_logs_what_is_measured(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger(tmp_path, name="", version=""))
    short = SHORT | {"batch_size": np.int64(8)}
    power = PowerLimit(**short, step_w=100, meter=gpu_meter, fabric=fabric, device="cuda:0")
    train(power, gpu, 60)
    assert power.profile is not None
    assert (power.profile.batch_size, power.profile.num_devices) == (8, 1)
    assert power._ranks.root_device == torch.device("cpu")  # Fabric's device
    fabric.logger.save()
    (metrics,) = tmp_path.rglob("metrics.csv")
    rows = [
        (int(row["step"]), float(row["zeus/power_limit_w"]))
        for row in csv.DictReader(metrics.read_text().splitlines())
    ]
    assert rows == [(10, 300), (16, 200), (22, 100), (22, 200)]  # measured, and the one that is set


def test_an_exception_restores_the_limit_and_goes_on(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    def fail(batch: int) -> None:
        if batch == 30:
            assert gpu.limit_mw != 250_000
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(PowerLimit(**SHORT, meter=gpu_meter), gpu, then=fail)
    assert_restored(gpu)


def test_what_fails_as_the_block_is_entered_leaves_nothing_behind(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    with pytest.raises(ZeusConfigError, match="no batch size given"):
        PowerLimit(meter=gpu_meter)
    for size in (0, 8.5, "8", True):
        with pytest.raises(ZeusConfigError, match=f"batch_size is {size!r}"):
            PowerLimit(batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(ZeusConfigError, match="selector is 'cheapest'"):
        PowerLimit(batch_size=8, selector="cheapest")
    with pytest.raises(TypeError, match="argument 'profile_step'"):
        PowerLimit(batch_size=8, profile_step=3)  # misspelt, on purpose
    run = recurrence(None, "a")
    with pytest.raises(ZeusConfigError, match="has no batch size before it is entered"):
        train(PowerLimit(run=run, meter=gpu_meter), gpu)
    gpu.refuse_limits()
    with default_sigterm():
        with pytest.raises(ZeusPowerError, match="CAP_SYS_ADMIN"):
            train(PowerLimit(**SHORT, meter=gpu_meter, on_unavailable="raise"), gpu)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert_restored(gpu)


def test_sigterm_restores_the_limit(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    def terminate(batch: int) -> None:
        if batch == 30:
            assert gpu.limit_mw != 250_000
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LIMIT_S)  # the handler ends it

    with default_sigterm():
        with pytest.raises(SystemExit) as raised:
            train(PowerLimit(**SHORT, meter=gpu_meter), gpu, then=terminate)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert raised.value.code == 128 + signal.SIGTERM
    assert_restored(gpu)
