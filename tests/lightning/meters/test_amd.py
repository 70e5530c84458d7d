"""The AMD meter, through AMD's own Python library over the fake one."""

from __future__ import annotations

import time
import types

import pynvml
import pytest
import torch
from fake_amd import uuid_of
from fake_nvml import FakeDriver

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import open_meter
from zeus_lightning.meters.amd import AmdMeter

CUDA = torch.device("cuda", 0)


def test_ten_seconds_at_250_watts_are_2500_joules(amd_gpus: FakeDriver) -> None:
    amd_gpus.gpus[1].set_load(0.8)
    meter = AmdMeter([1])
    amd_gpus.freeze()
    assert meter.devices == (uuid_of(amd_gpus.gpus[1]),)
    assert (meter.device_model, meter.max_power_w) == ("Fake H100", 300)
    before = meter.read()
    amd_gpus.advance(10)
    assert (meter.read() - before).energy_j == pytest.approx(2500, abs=0.01)
    amd_gpus.gpus[1].limit_mw = 250_000
    assert meter.power_limits_w() == (250, 300)
    meter.close()


def test_without_an_energy_counter_the_power_is_sampled(amd_gpus: FakeDriver) -> None:
    amd_gpus.gpus[0].fail("energy", pynvml.NVML_ERROR_NOT_SUPPORTED)
    meter = AmdMeter([0])
    assert meter.samples
    meter.close()
    amd_gpus.gpus[0].fail("power", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(ZeusMeterError, match=r"cannot read the power.*use another GPU"):
        AmdMeter([0])


def test_a_counter_that_contradicts_the_power_is_not_believed_and_the_power_is_sampled(
    amd_gpus: FakeDriver,
) -> None:
    amd_gpus.gpus[0].set_load(1)
    amd_gpus.refresh_s = 1e9  # the counters stand still
    with pytest.warns(UserWarning, match="counts 0 W while the GPU draws 300 W") as caught:
        meter = AmdMeter([0])
    assert len(caught) == 1
    assert meter.samples
    before = meter.read()
    time.sleep(0.2)
    spent = meter.read() - before
    assert spent.energy_j == pytest.approx(300 * spent.time_s, rel=0.2)
    meter.close()


def test_a_gpu_is_found_by_amd_smis_uuid_and_by_the_one_that_torch_shows(
    amd_gpus: FakeDriver,
) -> None:
    second = uuid_of(amd_gpus.gpus[1]).removeprefix("AMD-")
    shown_by_torch = b"00000000000fa4e1".hex()  # HIP's letters as bytes
    shown_by_torch = f"{shown_by_torch[:8]}-{shown_by_torch[8:12]}-{shown_by_torch[12:]}"
    for name in (second, f"AMD-{second}", f"GPU-{shown_by_torch}"):
        meter = AmdMeter([name])
        assert meter.devices == (f"AMD-{second}",)
        meter.close()
    for name in (7, "GPU-0000", "nonsense"):
        with pytest.raises(
            ZeusMeterError, match='name one by its index in `amd-smi list`, as in meter="amd:0"'
        ):
            AmdMeter([name])


def test_rocm_calls_its_devices_cuda_and_auto_tells_them_apart(
    amd_gpus: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = b"00000000000fa4e1".hex()
    properties = types.SimpleNamespace(uuid=shown)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for name in ("auto", "amd"):
        meter = open_meter(name, CUDA)
        assert meter.devices == (uuid_of(amd_gpus.gpus[1]),)
        meter.close()
    with pytest.raises(ZeusConfigError, match="this build of torch does not support them"):
        open_meter("nvml", CUDA)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ZeusConfigError, match="this build of torch does not support them"):
        open_meter("amd", CUDA)


def test_named_gpus_are_counted_whatever_torch_is_for(amd_gpus: FakeDriver) -> None:
    meter = open_meter("amd:0,1")
    assert meter.name == "amd"
    assert len(meter.devices) == 2
    meter.close()
