"""The meters of a run; see also `test_distributed.py`."""

from __future__ import annotations

import psutil
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from programs import Dying, StepMeter

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.meters import Reading
from zeus_lightning.meters.cpu_estimate import usable_cores
from zeus_lightning.run.run_meter import Claim, RunMeter, _warn_of_threads, counting_ranks


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


def test_the_load_of_a_host_is_the_mean_of_its_load_averages_per_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = psutil.cpu_count()
    monkeypatch.setattr(psutil, "getloadavg", iter([(cores, 0, 0), (2 * cores, 0, 0)]).__next__)
    meter = RunMeter(StepMeter(), SingleDeviceStrategy())
    assert [meter.host_load(), meter.host_load()] == [1.0, 1.5]


@pytest.mark.parametrize("more", [0, 1])
def test_more_threads_than_cores_are_a_warning(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores, before = usable_cores(), torch.get_num_threads()
    torch.set_num_threads(cores + more)
    try:
        RunMeter(StepMeter(), SingleDeviceStrategy())
    finally:
        torch.set_num_threads(before)
    text = f"zeus: the run's {cores + 1} threads share {cores} cores, so they wait for each other; "
    remedy = f"set OMP_NUM_THREADS={cores}"
    assert [str(each.message) for each in recwarn] == [text + remedy] * more


@pytest.mark.parametrize(
    ("processes", "threads", "remedy"),
    [(2, 6, "set OMP_NUM_THREADS=4"), (9, 2, "set OMP_NUM_THREADS=1"), (9, 1, "use 8 devices")],
)
def test_threads_of_all_processes_are_counted_against_the_cores(
    monkeypatch: pytest.MonkeyPatch, processes: int, threads: int, remedy: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("zeus_lightning.meters.cpu_estimate.usable_cores", lambda: 8)
    text = f"the run's {processes * threads} threads share 8 cores, .*; {remedy}"
    with pytest.warns(UserWarning, match=text):
        _warn_of_threads(processes, threads)


@pytest.mark.parametrize("variable", ["1", "2"])
def test_a_program_that_overrides_the_variable_is_told_what_to_call(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr("zeus_lightning.meters.cpu_estimate.usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    remedy = r"sets their number: make it call torch.set_num_threads\(2\)$"
    with pytest.warns(UserWarning, match=remedy):
        _warn_of_threads(1, 10)
