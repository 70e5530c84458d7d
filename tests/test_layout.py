"""Files of tests mirror files of code."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGES = {
    "benchmarks": ROOT / "benchmarks",
    "lightning": ROOT / "zeus_lightning",
    "service": ROOT / "service" / "zeus_service",
}
CROSS_CUTTING = {
    "lightning/test_both_callbacks.py",
    "lightning/test_distributed.py",
    "lightning/test_pytorch_lightning.py",
    "lightning/meters/test_open_meter.py",
    "service/test_outages.py",
    "service/test_seen_from_outside.py",
    "service/api/test_zeus_server.py",
    "service/bandit/test_own_policy.py",
    "service/bandit/test_quality.py",
    "service/serving/test_slow_clients.py",
    "service/bandit/test_usable.py",
    "service/simulation/test_fidelity.py",
    "service/db/test_backup.py",
    "service/db/test_cost.py",
}
"""Files whose claims belong to no single file of code."""

FILES = sorted(
    str(path.relative_to(TESTS))
    for folder in PACKAGES
    for path in (TESTS / folder).rglob("test_*.py")
)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_tests_is_named_after_a_file_of_code(name: str) -> None:
    """`test_bso_resume.py` may stand beside `test_bso.py`, and `test_contract.py` in a folder."""
    path = Path(name)
    folder = PACKAGES[path.parts[0]].joinpath(*path.parts[1:-1])
    modules = {module.stem.strip("_") for module in folder.glob("*.py")}  # __init__: test_init.py
    stem = path.stem.removeprefix("test_")
    mirrors = stem == "contract" or any(
        stem == module or stem.startswith(f"{module}_") for module in modules
    )
    assert mirrors != (name in CROSS_CUTTING), f"{folder} has no module for {name}"


def test_every_cross_cutting_file_exists() -> None:
    assert set(FILES) >= CROSS_CUTTING
