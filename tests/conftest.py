"""Fixtures for all tests."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from service_process import ServiceProcess

pytest_plugins = [
    *("fake_nvml.plugin", "fake_amd.plugin"),
    *("own_servers", "databases", "left_out", "quick"),
]

# Of the processes that tests start, too: where they are more than the cores, threads that wait for
# each other in circles take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Of what tests install they import a part: Python compiles that alone, and pip would compile all.
os.environ.setdefault("PIP_NO_COMPILE", "1")

# Importing Lightning takes seconds. This server does so once; processes that train are its forks.
multiprocessing.set_forkserver_preload(["lightning.pytorch"])

# how fast examples are made and tried is the machine's affair, and others use it too
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A running service that tests share; each test takes job ids of its own."""
    with ServiceProcess(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path for a Unix socket, shorter than what the kernel takes."""
    with tempfile.TemporaryDirectory() as directory:
        yield f"{directory}/zeusd.sock"


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A running service that a test may kill and start again."""
    with ServiceProcess(tmp_path) as process:
        yield process
