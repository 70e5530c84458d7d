"""Recorded runs, small ones written here and the published ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from service.simulation import recorded


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A directory with a tiny recorded workload."""
    recorded.write(tmp_path, recorded.workload())
    return tmp_path


@pytest.fixture(scope="session")
def published_traces() -> Path:
    """The runs published with the Zeus paper."""
    directory = os.environ.get("ZEUS_TRACES")
    if not directory:
        pytest.skip("no recorded runs: set ZEUS_TRACES to the directory of the Zeus paper's files")
    return Path(directory)
