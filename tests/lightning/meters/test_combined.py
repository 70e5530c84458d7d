"""GPUs and CPU packages counted together."""

from __future__ import annotations

import pytest
from fake_nvml import FakeDriver
from fake_powercap import FakePowercap

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import open_meter, rapl


@pytest.fixture(autouse=True)
def _host(fake_gpus: FakeDriver, powercap: FakePowercap, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.freeze()
    monkeypatch.setattr(rapl, "POWERCAP", powercap.root)


def test_gpus_packages_and_memory_are_summed_and_the_latter_two_shown_apart(
    fake_gpus: FakeDriver, powercap: FakePowercap
) -> None:
    powercap.add_package(0)
    powercap.add_zone("intel-rapl:0/intel-rapl:0:1", "dram")
    meter = open_meter("nvml:0,1+rapl")
    assert meter.name == "nvml+rapl"
    uuids = tuple(gpu.uuid for gpu in fake_gpus.gpus)
    assert meter.devices == (*uuids, "package-0", "dram of package-0")
    assert meter.device_model.startswith("Fake H100 + ")
    assert meter.max_power_w == 300 + 300 + 120
    before = meter.read()
    fake_gpus.advance(10)
    powercap.spend("intel-rapl:0", 7)
    powercap.spend("intel-rapl:0/intel-rapl:0:1", 3)
    spent = meter.read() - before
    assert spent.energy_j == pytest.approx(2 * 500 + 10, abs=0.01)
    assert spent.cpu_energy_j == pytest.approx(10)
    meter.close()


def test_one_that_cannot_be_read_is_an_error_and_leaves_nothing_open(
    fake_gpus: FakeDriver,
) -> None:
    with pytest.raises(ZeusMeterError, match="no CPU energy counter under"):
        open_meter("nvml:0+rapl")
    with pytest.raises(ZeusConfigError, match="measures the NVIDIA GPU of this run"):
        open_meter("nvml+rapl")


@pytest.mark.parametrize("meter", ["rapl+rapl", "cpu-estimate+rapl", "+rapl", "rapl+nvml"])
def test_other_sums_are_refused(meter: str) -> None:
    with pytest.raises(ZeusConfigError, match="is not one of"):
        open_meter(meter)
