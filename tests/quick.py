"""Which tests are quick, and a guard that fails a quick one which starts a process.

A quick test starts no process and needs no server. No test is marked by hand: the mark `quick` is
set here on each one that is in none of `PLACES`, has no parameter that names a database server, and
whose code, fixtures and helpers name nothing that starts a process.
"""

from __future__ import annotations

import _posixsubprocess
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

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
    *("subprocess", "Popen", "multiprocessing", "fork"),
    "CONTEXT",  # of `forked.py`, which starts a fork server
    "run_all",  # the simulator's, in several processes
    "LocalCluster",  # Dask's
    # the command `recur`, which starts runs, and what in it does so
    *("recur", "Driver", "Child", "launch", "OwnService"),
    "runpytest_subprocess",
}
"""Names in a test's code, or in what it calls of the tests' own, that start a process."""

COMPILING_FIXTURE = "fake_nvml_library"
COMPILER = shlex.split(os.environ.get("CC", "cc"))[0]
"""The only program that a quick test may start: it builds the fake GPU driver, once per session."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FORK_EXEC = "zeus.fork_exec"
_EVENTS = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    _FORK_EXEC,
}


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
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [
        definitions[-1].func for name, definitions in fixtures.items() if name != COMPILING_FIXTURE
    ]
    functions += [item.function, *filter(_is_of_tests, parameters)]
    return not any(map(_starts_a_process, functions))


@functools.cache
def _starts_a_process(function: Any) -> bool:
    """Whether a function of the tests, or one that it names, names what starts a process."""
    seen, left = set(), [function]
    while left:
        function = inspect.unwrap(left.pop())  # such as what `contextmanager` decorates
        if function in seen:
            continue
        seen.add(function)
        if isinstance(function, type):
            left += [each for each in vars(function).values() if isinstance(each, FunctionType)]
            continue
        names = set(_names(function.__code__))
        if names & STARTERS:
            return True
        named = [function.__globals__.get(name) for name in names]
        left += [each for each in named if _is_of_tests(each)]
    return False


def _is_of_tests(value: object) -> bool:
    if not isinstance(value, (FunctionType, type)):
        return False
    module = sys.modules.get(value.__module__)
    return TESTS in Path(getattr(module, "__file__", None) or "/").parents


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_watched = False
_seen: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a quick test must not do; Python calls this for each audit event."""
    if not _watched:
        return
    if event in _EVENTS:
        program = arguments[0] if arguments else ""
        if event != "subprocess.Popen" or program != COMPILER:
            _seen.append(f"{event} {program}".strip())
    elif event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and address[0] not in _LOOPBACK:
            _seen.append(f"{event} {address}")


def _audit_fork_exec() -> None:
    """Raise an audit event where multiprocessing starts a process: Python raises none."""
    fork_exec = _posixsubprocess.fork_exec

    def audited(*arguments: Any) -> int:
        sys.audit(_FORK_EXEC)
        return int(fork_exec(*arguments))

    _posixsubprocess.fork_exec = audited


_audit_fork_exec()
sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _watched
    _watched = item.get_closest_marker("quick") is not None
    try:
        return (yield)
    finally:
        _watched = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _seen:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} is marked quick, and did in its {call.when}: {', '.join(_seen)}. "
            "tests/quick.py says which tests are quick."
        )
        _seen.clear()
    return report
