"""The fake driver behaves as the real one does where meters and power limits look."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from fake_nvml import FakeDriver
from fake_nvml.driver import build


@pytest.fixture
def handle(fake_gpus: FakeDriver) -> Iterator[object]:
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def test_energy_is_power_times_time(fake_gpus: FakeDriver, handle: object) -> None:
    gpu = fake_gpus.gpus[0]
    fake_gpus.freeze()
    before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    for load in (0.0, 1.0, 0.2):  # 50 W, 300 W, 100 W
        gpu.set_load(load)
        fake_gpus.advance(2)
    spent_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj
    assert spent_mj == pytest.approx(900_000, abs=1)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == int(gpu.energy_mj())


def test_the_power_limit_caps_the_power(fake_gpus: FakeDriver, handle: object) -> None:
    gpu = fake_gpus.gpus[0]
    fake_gpus.freeze()
    gpu.set_load(1)
    before_mj = gpu.energy_mj()
    fake_gpus.advance(1)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 120_000)
    fake_gpus.advance(1)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == gpu.limit_mw == 120_000
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == gpu.power_w * 1e3 == 120_000
    assert gpu.energy_mj() - before_mj == pytest.approx(420_000)


@pytest.mark.parametrize("limit_mw", [99_999, 300_001])
def test_a_limit_outside_the_constraints_is_refused(
    fake_gpus: FakeDriver, handle: object, limit_mw: int
) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
    assert fake_gpus.gpus[0].limit_mw == 300_000


def test_setting_a_limit_may_be_forbidden(fake_gpus: FakeDriver, handle: object) -> None:
    fake_gpus.gpus[0].fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 200_000)


def test_power_lags_behind_a_change_of_the_limit_and_energy_is_still_its_integral(
    fake_gpus: FakeDriver, handle: object
) -> None:
    gpu = fake_gpus.add_gpu(lag_s=0.5)
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    fake_gpus.freeze()
    gpu.set_load(1)
    fake_gpus.advance(20)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 100_000)
    before_mj, integral_j, drawn_w = gpu.energy_mj(), 0.0, [gpu.power_w]
    for _ in range(200):
        fake_gpus.advance(0.01)
        drawn_w.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
        integral_j += 0.01 * (drawn_w[-2] + drawn_w[-1]) / 2
    assert drawn_w[0] == pytest.approx(300)
    assert drawn_w[50] == pytest.approx(100 + 200 / math.e, abs=0.1)  # one time constant later
    assert drawn_w[-1] == pytest.approx(gpu.power_w, abs=1e-3)
    assert gpu.power_w == pytest.approx(100 + 200 * math.exp(-4))
    assert (gpu.energy_mj() - before_mj) / 1e3 == pytest.approx(integral_j, rel=1e-3)
    counted_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert counted_mj == pytest.approx(gpu.energy_mj(), abs=1)


def test_a_kernel_takes_longer_under_a_lower_limit_and_its_cost_has_one_valley(
    fake_gpus: FakeDriver, handle: object
) -> None:
    gpu = fake_gpus.gpus[0]
    fake_gpus.freeze()
    times_s, costs = [], []
    for limit_w in range(300, 75, -25):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_w * 1000)
        gpu.run(0.01)
        with fake_gpus.locked() as before_s:
            before_mj = gpu._energy_j(before_s) * 1e3
        gpu.run(0.01)
        with fake_gpus.locked() as now_s:
            times_s.append(now_s - before_s)
        energy_j = (gpu.energy_mj() - before_mj) / 1e3
        assert energy_j == pytest.approx(limit_w * times_s[-1])
        costs.append(energy_j + 300 * times_s[-1])
    assert times_s[0] == pytest.approx(0.01)
    assert times_s == sorted(times_s)
    lowest = costs.index(min(costs))
    assert lowest == 3  # 225 W
    assert costs[: lowest + 1] == sorted(costs[: lowest + 1], reverse=True)
    assert costs[lowest:] == sorted(costs[lowest:])


def test_the_counter_is_refreshed_now_and_then(fake_gpus: FakeDriver, handle: object) -> None:
    gpu = fake_gpus.gpus[0]
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.125
    with fake_gpus.locked() as now_s:
        since_refresh_s = now_s % 0.125
    fake_gpus.advance(0.125 - since_refresh_s)
    start_mj = gpu.energy_mj()

    def shown_mj() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - start_mj)

    fake_gpus.advance(0.0625)
    gpu.set_load(1)
    fake_gpus.advance(0.05)
    assert shown_mj() == pytest.approx(0, abs=1)
    fake_gpus.advance(0.025)  # past the next refresh
    at_refresh_mj = 0.0625 * 50_000 + 0.0625 * 300_000
    assert shown_mj() == pytest.approx(at_refresh_mj, abs=1)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    fake_gpus.advance(0.05)
    assert shown_mj() == pytest.approx(at_refresh_mj, abs=1)


def test_a_noisy_counter_is_wrong_by_no_more_than_its_noise_and_never_falls(
    fake_gpus: FakeDriver, handle: object
) -> None:
    gpu = fake_gpus.add_gpu(noise_j=4.0)
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.1
    gpu.set_load(1)  # 30 J from one refresh to the next
    errors_j, shown_mj = [], 0
    for _ in range(100):
        fake_gpus.advance(0.1)
        before_mj, shown_mj = shown_mj, pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        assert shown_mj > before_mj
        with fake_gpus.locked() as now_s:
            refreshed_s = math.floor(now_s / 0.1) * 0.1
        errors_j.append(shown_mj / 1e3 - gpu._energy_j(refreshed_s))
    assert -0.01 < min(errors_j) < 0.5
    assert 3.5 < max(errors_j) < 4.01


def test_a_gpu_that_warms_up_slows_down_at_the_same_power(fake_gpus: FakeDriver) -> None:
    gpu = fake_gpus.add_gpu(leak_w=50, warm_s=60)
    fake_gpus.freeze()
    cold_s = gpu.step_s(1.0)
    fake_gpus.advance(60)
    warm_s = gpu.step_s(1.0)
    fake_gpus.advance(600)
    assert cold_s == 1.0
    assert warm_s == pytest.approx((250 / (200 + 50 / math.e)) ** (1 / 3))
    assert gpu.step_s(1.0) == pytest.approx((250 / 200) ** (1 / 3), rel=1e-4)
    gpu.set_load(1)
    assert gpu.power_w == 300


def test_child_processes_see_and_change_the_same_driver(fake_gpus: FakeDriver) -> None:
    script = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    print(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetIndex(handle))
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 150_000 + index)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=fake_gpus.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [fake_gpus.gpus[0].uuid, "0", fake_gpus.gpus[1].uuid, "1"]
    assert [gpu.limit_mw for gpu in fake_gpus.gpus] == [150_000, 150_001]


def test_every_call_on_a_lost_gpu_fails_and_the_others_work(
    fake_gpus: FakeDriver, handle: object
) -> None:
    fake_gpus.gpus[0].lose()
    for call in (
        pynvml.nvmlDeviceGetTotalEnergyConsumption,
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetName,
        pynvml.nvmlDeviceGetPowerManagementLimitConstraints,
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(handle)
    assert pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(1)) == 50_000


def test_nothing_works_once_the_driver_is_unloaded(fake_gpus: FakeDriver, handle: object) -> None:
    fake_gpus.unload()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_without_a_compiler_building_it_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"'no-such-compiler' is not on the PATH: install gcc"):
        build(tmp_path)
