"""Fixtures that put the fake driver beneath nvidia-ml-py, in this process and its children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from fake_nvml.driver import DRIVER_VERSION, FakeDriver, FakeGpu
from fake_nvml.library import build, load

if TYPE_CHECKING:
    from gpu_programs import DriversClock


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver, built and loaded; without a C compiler every test that needs it fails."""
    library = build(tmp_path_factory.mktemp("fake_nvml"))
    load(library)
    return library


@pytest.fixture
def fake_gpus(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeDriver:
    """A fake driver with two GPUs at rest, the only one this test and its children see.

    The user's state directory, which holds the records of power limits, is the test's own.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    driver = FakeDriver(fake_nvml_library, tmp_path / "fake_nvml.state")
    for name, value in driver.variables.items():
        monkeypatch.setenv(name, value)
    pynvml.nvmlInit()
    version = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    assert version == DRIVER_VERSION, f"a real driver ({version}) was loaded before the fake one"
    return driver


@pytest.fixture
def gpu(fake_gpus: FakeDriver) -> FakeGpu:
    """The first GPU, limited to 250 W, on a driver whose clock moves by kernels alone."""
    fake_gpus.freeze()
    fake_gpus.gpus[0].limit_mw = 250_000
    return fake_gpus.gpus[0]


@pytest.fixture
def gpu_meter(fake_gpus: FakeDriver, gpu: FakeGpu) -> Iterator[DriversClock]:
    """The meter of that GPU, on the driver's clock."""
    from gpu_programs import DriversClock  # imports torch, which most tests do without

    meter = DriversClock(fake_gpus)
    yield meter
    meter.close()
