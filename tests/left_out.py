"""The last lines of a run: how many cases were left out, and how to get them."""

from __future__ import annotations

from collections import Counter

import pytest

GPU = "needs an NVIDIA GPU"
"""How the reason begins for the only cases that a complete run may leave out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--complete",
        action="store_true",
        help="fail if any case was left out for want of something other than a GPU",
    )


class LeftOut:
    """A pytest plugin of the process that prints the summary."""

    def __init__(self, *, must_be_complete: bool) -> None:
        self._must_be_complete = must_be_complete
        self._reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        missing = any(not reason.startswith(GPU) for reason in self._reasons)
        if self._must_be_complete and missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print after the summary, so that these are the last lines."""
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        for reason, count in self._reasons.most_common():
            terminal.write_line(f"left out: {count} cases: {reason}", yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        plugin = LeftOut(must_be_complete=config.getoption("complete"))
        config.pluginmanager.register(plugin)
