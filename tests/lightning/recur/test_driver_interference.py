"""A driver in this process whose service fails, or is asked."""

from __future__ import annotations

import io
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from zeus_lightning.recur import driver as driver_module
from zeus_lightning.recur.driver import Display, Driver
from zeus_lightning.recur.ledger import Ledger
from zeus_lightning.recur.progress import Plan
from zeus_lightning.recur.service import Service


class Scripted(Service):
    """A service that answers once, and then does what the test says."""

    def __init__(self, then: Exception | Path | None = None) -> None:
        super().__init__("http://127.0.0.1:9")
        self._then = then
        self._has_answered = False

    def answers(self) -> bool:
        if self._has_answered and isinstance(self._then, Exception):
            raise self._then
        if self._has_answered and self._then is not None:
            self._then.touch()
        self._has_answered = True
        return True


def new_driver(folder: Path, service: Service, script: str, *, parallel: int = 1) -> Driver:
    console = Console(file=io.StringIO())
    return Driver(
        plan=Plan(recurrences=parallel, parallel=parallel),
        command=["bash", "-c", script],
        interval_s=None,
        timeout_s=20.0,
        ledger=Ledger(folder, resume=False),
        service=service,
        display=Display(console, parallel),
    )


def test_an_error_in_the_driver_leaves_no_run_behind(tmp_path: Path) -> None:
    service = Scripted(then=RuntimeError("a bug"))
    driver = new_driver(tmp_path, service, "exec sleep 1000", parallel=2)
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="a bug"):
        driver.run()
    assert list(driver.ledger.folder.glob("*.log"))  # one was launched
    assert set(psutil.Process().children()) <= before


def test_a_service_is_asked_for_while_a_run_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_SERVICE_POLL_S", 0.0)
    service = Scripted(then=tmp_path / "asked")
    driver = new_driver(tmp_path, service, f"until [ -e {tmp_path}/asked ]; do sleep 0.01; done")
    driver.run()
    assert driver.progress.done == {1}
