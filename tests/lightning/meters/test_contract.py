"""What every energy meter promises."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pynvml
import pytest
from apple_silicon import as_on_a_mac
from fake_nvml import FakeDriver
from fake_powercap import FakePowercap

from zeus_lightning.meters import EnergyMeter, Reading, open_meter
from zeus_lightning.meters.amd import AmdMeter
from zeus_lightning.meters.apple import AppleMeter
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.meters.cpu_estimate import CpuEstimateMeter
from zeus_lightning.meters.nvml import NvmlMeter
from zeus_lightning.meters.rapl import RaplMeter


@dataclass
class Rig:
    """A meter, and a way to spend energy on what it counts."""

    meter: EnergyMeter
    work: Callable[[], object]


@pytest.fixture(
    params=[
        "nvml",
        "nvml of an old GPU",
        "amd",
        "apple",
        "rapl",
        "nvml+rapl",
        "cpu-estimate",
    ]
)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = _rig(request)
    yield rig
    rig.meter.close()


@pytest.fixture
def meter(rig: Rig) -> EnergyMeter:
    return rig.meter


def _rig(request: pytest.FixtureRequest) -> Rig:
    if request.param == "rapl":
        powercap: FakePowercap = request.getfixturevalue("powercap")
        powercap.add_package(0)
        return Rig(RaplMeter(powercap.root), lambda: powercap.spend("intel-rapl:0", 3))
    if request.param == "cpu-estimate":
        return Rig(CpuEstimateMeter(), _burn_cpu)
    if request.param == "amd":
        request.getfixturevalue("amd_gpus")
        return Rig(AmdMeter([0]), lambda: time.sleep(0.05))
    if request.param == "apple":
        chip = as_on_a_mac(request.getfixturevalue("monkeypatch"))
        return Rig(AppleMeter(), lambda: setattr(chip, "gpu_mj", chip.gpu_mj + 3000))
    driver: FakeDriver = request.getfixturevalue("fake_gpus")
    if request.param == "nvml of an old GPU":
        driver.gpus[0].fail("energy", pynvml.NVML_ERROR_NOT_SUPPORTED)
    if request.param == "nvml+rapl":
        powercap = request.getfixturevalue("powercap")
        powercap.add_package(0)
        packages = RaplMeter(powercap.root)
        return Rig(
            CombinedMeter(NvmlMeter([0]), packages), lambda: powercap.spend("intel-rapl:0", 3)
        )
    return Rig(NvmlMeter([0]), lambda: time.sleep(0.05))


def _burn_cpu() -> None:
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass


def test_it_is_an_energy_meter(meter: EnergyMeter) -> None:
    assert isinstance(meter, EnergyMeter)
    assert open_meter(meter) is meter


def test_it_names_what_it_counts(meter: EnergyMeter) -> None:
    assert meter.devices
    assert all(isinstance(device, str) and device for device in meter.devices)
    assert meter.device_model
    assert math.isfinite(meter.max_power_w)
    assert meter.max_power_w > 0


def test_only_an_estimate_calls_itself_one(meter: EnergyMeter) -> None:
    assert meter.is_estimate == ("estimate" in meter.name)
    assert meter.name in ("nvml", "amd", "apple", "rapl", "nvml+rapl", "cpu-estimate")


def test_it_counts_from_the_moment_it_is_opened(meter: EnergyMeter) -> None:
    # The devices have spent energy before: a fake GPU 1 MJ, this process tree seconds of CPU.
    assert meter.read().energy_j < 20


def test_neither_energy_nor_time_ever_falls(rig: Rig) -> None:
    readings = []
    for _ in range(5):
        readings += [rig.meter.read(), rig.meter.read()]
        rig.work()
    for earlier, later in pairwise(readings):
        assert later.energy_j >= earlier.energy_j
        assert later.time_s >= earlier.time_s


def test_work_between_two_readings_is_their_difference(rig: Rig) -> None:
    start_s = time.monotonic()
    before = rig.meter.read()
    work_start_s = time.monotonic()
    rig.work()
    work_end_s = time.monotonic()
    after = rig.meter.read()
    end_s = time.monotonic()
    spent = after - before
    assert spent == Reading(
        after.energy_j - before.energy_j,
        after.time_s - before.time_s,
        after.cpu_energy_j - before.cpu_energy_j,
    )
    assert spent.energy_j > 0
    assert work_end_s - work_start_s <= spent.time_s <= end_s - start_s


def test_closing_twice_is_closing_once(meter: EnergyMeter) -> None:
    meter.close()
    meter.close()
