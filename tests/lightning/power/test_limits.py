"""A GPU's power limit through the real nvidia-ml-py on the fake driver, and through zeusd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pynvml
import pytest
from fake_nvml import FakeDriver, FakeGpu
from fake_zeusd import FakeZeusd

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.zeusd import Zeusd


def test_it_has_the_gpus_names_and_the_whole_watts_that_can_be_set(fake_gpus: FakeDriver) -> None:
    gpu = fake_gpus.add_gpu(min_w=99.2, max_w=432.9)
    for name in (gpu.uuid, 2):
        limit = GpuLimit(name)
        assert limit.uuid == gpu.uuid
        assert (limit.min_w, limit.max_w) == (100, 432)
        limit.close()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (FakeGpu.lose, "gpu_lost"),
        (FakeGpu.refuse_limits, "no_permission"),
        (FakeGpu.lack_power_control, "no_power_control"),
    ],
)
def test_an_error_of_nvml_has_its_cause_and_nvml_is_released(
    fake_gpus: FakeDriver, change: Callable[[FakeGpu], None], cause: str
) -> None:
    change(fake_gpus.gpus[0])
    with pytest.raises(ZeusPowerError) as raised, closing(GpuLimit(0)) as limit:
        limit.check_permission()
    assert raised.value.fields == {"cause": cause}
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


# Through zeusd


@pytest.fixture
def daemon(fake_gpus: FakeDriver, socket_path: str) -> Iterator[FakeZeusd]:
    """A daemon, on GPUs whose limits this process may not set."""
    for gpu in fake_gpus.gpus:
        gpu.limit_mw = 250_000
        gpu.refuse_limits()
    with FakeZeusd(fake_gpus, socket_path) as daemon:
        yield daemon


def limits_mw(driver: FakeDriver) -> list[int]:
    return [gpu.limit_mw for gpu in driver.gpus]


def test_in_a_container_whose_gpu_0_is_the_hosts_gpu_1_that_one_is_set(
    fake_gpus: FakeDriver, daemon: FakeZeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_FIRST", "1")
    with closing(GpuLimit(0, Zeusd(daemon.address))) as limit:
        limit.set_mw(150_000)
    assert limits_mw(fake_gpus) == [250_000, 150_000]


def test_the_daemon_of_another_host_sets_nothing(
    fake_gpus: FakeDriver,
    fake_nvml_library: Path,
    tmp_path: Path,
    socket_path: str,
) -> None:
    elsewhere = FakeDriver(fake_nvml_library, tmp_path / "elsewhere.state")
    for gpu in elsewhere.gpus:
        gpu.reset_counter()
    with (
        FakeZeusd(elsewhere, socket_path),
        closing(GpuLimit(0, Zeusd(socket_path))) as limit,
        pytest.raises(ZeusPowerError, match="no GPUs whose energy counter matches this GPU's"),
    ):
        limit.set_mw(150_000)
    assert limits_mw(elsewhere) == limits_mw(fake_gpus) == [300_000, 300_000]


def test_a_gpu_without_an_energy_counter_is_not_set_through_the_daemon(
    fake_gpus: FakeDriver, daemon: FakeZeusd
) -> None:
    fake_gpus.gpus[0].fail("energy", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with (
        closing(GpuLimit(0, Zeusd(daemon.address))) as limit,
        pytest.raises(ZeusPowerError, match="check that it runs on this host"),
    ):
        limit.set_mw(150_000)
    assert limits_mw(fake_gpus) == [250_000, 250_000]
