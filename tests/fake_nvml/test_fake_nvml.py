"""The fake driver behaves as the real one does where meters and power limits look."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pynvml
import pytest

from fake_nvml import FakeDriver


@pytest.fixture
def handle(fake_gpus: FakeDriver) -> Iterator[object]:
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


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
