"""How a meter is chosen."""

from __future__ import annotations

import types
import warnings

import pynvml
import pytest
import torch
from fake_nvml import FakeDriver
from fake_powercap import FakePowercap

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import open_meter, rapl

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def empty_powercap(powercap: FakePowercap, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host's RAPL counters be those of the test, none at first."""
    monkeypatch.setattr(rapl, "POWERCAP", powercap.root)


@pytest.fixture
def second_gpu_is_cuda_0(fake_gpus: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """CUDA as behind CUDA_VISIBLE_DEVICES=1; gives the devices that get synchronized.

    NVML is the fake driver's; of torch, which may be built without CUDA, only these two calls are
    replaced.
    """
    properties = types.SimpleNamespace(uuid=fake_gpus.gpus[1].uuid.removeprefix("GPU-"))
    synchronized: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", {CUDA: properties}.__getitem__)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    return synchronized


# auto


@pytest.mark.usefixtures("second_gpu_is_cuda_0")
@pytest.mark.parametrize("meter", ["auto", "nvml"])
def test_on_cuda_it_is_the_gpu_that_trains_whatever_its_nvml_index(
    fake_gpus: FakeDriver, powercap: FakePowercap, meter: str
) -> None:
    powercap.add_package(0)
    opened = open_meter(meter, CUDA)
    assert opened.name == "nvml"
    assert opened.devices == (fake_gpus.gpus[1].uuid,)
    opened.close()


def test_on_cuda_the_device_is_synchronized_before_each_reading(
    second_gpu_is_cuda_0: list[object],
) -> None:
    meter = open_meter("auto", CUDA)
    meter.read()
    meter.read()
    assert second_gpu_is_cuda_0 == [CUDA, CUDA]
    meter.close()


@pytest.mark.usefixtures("second_gpu_is_cuda_0")
@pytest.mark.parametrize(("has_packages", "name"), [(True, "rapl"), (False, "cpu-estimate")])
def test_on_cuda_where_the_gpu_cannot_be_read_auto_takes_the_next_meter_with_one_warning(
    fake_gpus: FakeDriver, powercap: FakePowercap, has_packages: bool, name: str
) -> None:
    if has_packages:
        powercap.add_package(0)
    for kind in ("energy", "power"):  # as in a MIG slice
        fake_gpus.gpus[1].fail(kind, pynvml.NVML_ERROR_NOT_SUPPORTED)
    words = "costs include only the host's CPUs, not the GPU: .*power of GPU-[^;]*Not Supported; "
    words += "see `zeus-lightning doctor`$"
    with pytest.warns(UserWarning, match=words) as caught:
        meter = open_meter("auto", CUDA)
    assert len(caught) == 1
    assert meter.name == name
    meter.close()
    with pytest.raises(ZeusMeterError, match="Not Supported"):
        open_meter("nvml", CUDA)


@pytest.mark.parametrize("device", [None, CPU])
def test_on_cpu_auto_is_rapl_where_it_can_be_read(
    powercap: FakePowercap, device: torch.device | None
) -> None:
    powercap.add_package(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter = open_meter("auto", device)
    assert meter.name == "rapl"
    meter.close()


def test_else_auto_is_the_estimate_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter = open_meter()
    assert meter.name == "cpu-estimate"


# Named meters


def test_nvml_with_devices_counts_these_even_for_training_on_cpu(fake_gpus: FakeDriver) -> None:
    first, second = (gpu.uuid for gpu in fake_gpus.gpus)
    for name, devices in {
        "nvml:0": (first,),
        "nvml:1, 0": (second, first),
        f"nvml:{second}, {first}": (second, first),
    }.items():
        meter = open_meter(name, CPU)
        assert meter.devices == devices
        meter.read()  # synchronizes no CUDA device: there is none
        meter.close()


@pytest.mark.parametrize("device", [None, CPU])
def test_nvml_on_cpu_needs_the_names_of_its_devices(device: torch.device | None) -> None:
    with pytest.raises(ZeusConfigError, match=r'trains on (the CPU|cpu); .*meter="nvml:0"'):
        open_meter("nvml", device)


def test_cpu_estimate_asked_for_by_name_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default, dearer = open_meter("cpu-estimate"), open_meter("cpu-estimate:7")
    assert default.name == "cpu-estimate"
    assert dearer.max_power_w == 2 * default.max_power_w


@pytest.mark.parametrize(
    "meter",
    ["", "Auto", "rapl:0", "auto:nvml", "nvml:", "nvml:0,,1", "cpu-estimate:", "cpu-estimate:hot",
     "rapl+rapl", "cpu-estimate+rapl", "+rapl", "rapl+nvml"],
)  # fmt: skip
def test_a_string_that_is_no_meter_is_refused_with_what_could_be_written(meter: str) -> None:
    with pytest.raises(ZeusConfigError, match=r'".*"') as error:
        open_meter(meter)
    assert repr(meter) in str(error.value)


def test_something_else_than_a_meter_is_refused() -> None:
    with pytest.raises(ZeusConfigError, match="meter=3 is neither a meter nor one of"):
        open_meter(3)


# GPUs and CPU packages counted together


def test_gpus_packages_and_memory_are_summed_and_the_latter_two_shown_apart(
    fake_gpus: FakeDriver, powercap: FakePowercap
) -> None:
    fake_gpus.freeze()
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


@pytest.mark.usefixtures("fake_gpus")
def test_a_sum_of_which_one_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ZeusMeterError, match="no CPU energy counter under"):
        open_meter("nvml:0+rapl")
    with pytest.raises(ZeusConfigError, match="measures the NVIDIA GPU of this run"):
        open_meter("nvml+rapl")
