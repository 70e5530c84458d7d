"""A hangup has the service read its configuration anew; one that would not start is refused."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import requests
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

BOTH_WAYS = pytest.mark.parametrize("gunicorn", [False, True], ids=["serve", "gunicorn"])


def hang_up(service: ServiceProcess) -> None:
    """Send SIGHUP, and wait until the workers are others."""
    before = set(service.workers())
    service.signal(signal.SIGHUP)
    wait_until(
        lambda: service.workers() and before.isdisjoint(service.workers()), service.log.read_text
    )


@BOTH_WAYS
def test_the_log_has_the_level_that_a_hangup_reads(tmp_path: Path, gunicorn: bool) -> None:
    with ServiceProcess(tmp_path, gunicorn=gunicorn) as service:
        (tmp_path / ".env").write_text("ZEUS_BSO_LOG_LEVEL=ERROR\n")
        hang_up(service)
        requests.get(f"{service.url}/healthz?after", timeout=LIMIT_S)
        seen = service.log.read_text()
        (tmp_path / ".env").write_text("")
        hang_up(service)
        requests.get(f"{service.url}/healthz", timeout=LIMIT_S)
        wait_until(lambda: "route=/healthz" in service.log.read_text()[len(seen) :])
    assert "route=/healthz" not in seen.rpartition("Handling signal: hup")[2]
