"""The meters of a run; see also `test_distributed.py`."""

from __future__ import annotations

import psutil
import pytest
from lightning.pytorch.strategies import SingleDeviceStrategy
from programs import Dying, OfTheNode, StepMeter

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.meters import Reading
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.run.run_meter import Claim, RunMeter, counting_ranks


def claim(*devices: str, model: str = "H100", meter: str = "nvml") -> Claim:
    return Claim(list(devices), model, 300.0, meter)


def test_ranks_that_share_some_devices_and_not_others_are_refused() -> None:
    with pytest.raises(
        ZeusConfigError,
        match=r"rank 1 and a lower rank both measure b, but their other devices differ",
    ):
        counting_ranks([claim("a", "b"), claim("b", "c")])


def test_a_meter_that_fails_as_a_checkpoint_is_saved_leaves_the_last_figures() -> None:
    error = RuntimeError("CUDA error: unspecified launch failure")
    meter = RunMeter(Dying(2, error), SingleDeviceStrategy())
    meter.begin()
    last = meter.spent()
    assert meter.spent_by_now() == last == Reading(6.0, 2.0)


def test_the_joules_of_the_cpus_are_taken_up_from_a_checkpoint() -> None:
    meter = RunMeter(CombinedMeter(StepMeter(), OfTheNode(1.0)), SingleDeviceStrategy())
    assert meter.max_power_w == 10 + 10
    meter.resume_from(Reading(100.0, 1.0, 40.0))
    meter.begin()
    assert meter.spent() == Reading(107.0, 3.0, 41.0)


def test_the_load_of_a_host_is_the_mean_of_its_load_averages_per_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = psutil.cpu_count()
    monkeypatch.setattr(psutil, "getloadavg", iter([(cores, 0, 0), (2 * cores, 0, 0)]).__next__)
    meter = RunMeter(StepMeter(), SingleDeviceStrategy())
    assert [meter.host_load(), meter.host_load()] == [1.0, 1.5]
