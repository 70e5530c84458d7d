"""Which tests are quick: those that start no process and need no server.

No test is marked by hand: the mark `quick` is set here on each one that is in none of `PLACES`, has
no parameter that names a database server, and whose fixtures, code and module name nothing that
starts a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

TESTS = Path(__file__).parent

PLACES = (
    "e2e",
    "gpu",
    # These compare with the Zeus project's own code, in many long replays.
    "service/api/test_zeus_server.py",
    "service/simulation/test_fidelity.py",
)
"""Folders and files without quick tests."""

SERVERS = {"postgresql", "mysql"}
"""Parameters of tests that need a server."""

STARTERS = {
    # fixtures
    *("service", "own_service", "any_service", "browser"),
    # what tests call
    *("ServiceProcess", "run_ranks", "running_ranks", "in_forked_child", "training_process"),
    *("run_all", "LocalCluster", "recur", "Driver", "Child", "launch", "OwnService", "fork"),
}
"""Fixtures, and names in a test's code, that start a process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and is_quick(item):
            item.add_marker("quick")


def is_quick(item: pytest.Function) -> bool:
    """Whether a test starts no process, as far as its place, parameters and code show."""
    if any(item.path.is_relative_to(TESTS / place) for place in PLACES):
        return False
    parameters = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    if any(isinstance(value, str) and value in SERVERS for value in parameters):
        return False
    used = {*item.fixturenames, *_names(item.function.__code__)}
    imports = vars(item.module).keys() & {"subprocess", "multiprocessing", "scripts"}
    return not imports and STARTERS.isdisjoint(used)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
