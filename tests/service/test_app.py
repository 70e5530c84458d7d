"""The application as it is when a worker has made it."""

from __future__ import annotations

from pathlib import Path

import requests
from service_process import ServiceProcess
from waiting import LIMIT_S

LOADED = """
import sys
import zeus_service.cli  # as `zeus-service serve` does
from zeus_service.app import make_ready_app

app = make_ready_app()

@app.get("/modules")
def modules():
    return list(sys.modules)
"""
"""A program for gunicorn that lists the modules which its worker has in memory."""


def test_a_worker_does_not_keep_in_memory_what_only_commands_need(tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text(LOADED)
    with ServiceProcess(tmp_path, gunicorn=True, application="loaded:app") as service:
        loaded = set(requests.get(f"{service.url}/modules", timeout=LIMIT_S).json())
    assert loaded >= {"zeus_service.optimizer", "zeus_service.cli"}
    assert not loaded & {"rich", "zeus_service.simulation"}
