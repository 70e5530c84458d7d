"""Fixtures of the meters' tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_powercap import FakePowercap


@pytest.fixture
def powercap() -> Iterator[FakePowercap]:
    """A powercap directory without zones, which any user may enter."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        yield FakePowercap(root)
