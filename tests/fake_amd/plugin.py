"""The fixture that puts the fake library beneath amdsmi, on the fake driver's GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml import FakeDriver

from fake_amd.library import build


@pytest.fixture(scope="session")
def fake_amd_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """ROCm's directory with the fake library; amdsmi looks for it once, as it is imported."""
    rocm = tmp_path_factory.mktemp("rocm")
    build(rocm)
    before = os.environ.get("ROCM_PATH")
    os.environ["ROCM_PATH"] = str(rocm)
    yield rocm
    if before is None:
        del os.environ["ROCM_PATH"]
    else:
        os.environ["ROCM_PATH"] = before


@pytest.fixture
def amd_gpus(fake_amd_library: Path, fake_gpus: FakeDriver) -> FakeDriver:
    """The fake driver, whose GPUs AMD SMI shows, too."""
    return fake_gpus
