"""What an operator sees: health, metrics, the log."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from service.api.wires import Api, report
from service.jobs import START, let_leases_expire, spec_json
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until
from zeus_service.serving.logging import JSONFormatter, TextFormatter


def metrics(service: ServiceProcess) -> dict[tuple[str, ...], float]:
    """`(name, label values...)` to value, of all samples but the buckets."""
    answer = requests.get(f"{service.url}/metrics", timeout=LIMIT_S)
    assert answer.headers["Content-Type"].startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


@pytest.fixture
def api(own_service: ServiceProcess) -> Api:
    return Api(own_service.url)


def post(api: Api, path: str, body: Any) -> None:
    answer = api("POST", path, body)
    assert answer.ok, answer.text


def test_requests_are_counted_over_all_workers(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with ServiceProcess(tmp_path, workers=3, TMPDIR=str(temporary)) as service:
        asked = 0

        def ask_until_two_workers_have_answered() -> bool:
            nonlocal asked
            asked += 1  # on a connection of its own
            requests.get(f"{service.url}/api/v1/jobs/nobody-{os.getpid()}", timeout=LIMIT_S)
            names = temporary.glob("zeus-service-counters-*/histogram_*.db")
            return len({path.stem.rpartition("_")[2] for path in names}) > 1

        wait_until(ask_until_two_workers_have_answered)
        requests.get(f"{service.url}/nothing/{os.getpid()}", timeout=LIMIT_S)
        requests.request("FOO", f"{service.url}/api/v1/jobs", timeout=LIMIT_S)
        found = metrics(service)
    route = "/api/v1/jobs/{job_id}"
    assert found["zeus_bso_http_requests_total", "GET", route, "404"] == asked
    assert found["zeus_bso_http_request_duration_seconds_count", "GET", route] == asked
    assert 0 < found["zeus_bso_http_request_duration_seconds_sum", "GET", route] < asked * LIMIT_S
    assert found["zeus_bso_http_requests_total", "GET", "", "404"] == 1
    assert found["zeus_bso_http_requests_total", "other", "", "405"] == 1
    assert str(os.getpid()) not in str(found.keys())
    assert list(temporary.iterdir()) == []


def test_metrics_are_counted_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, counting would end the worker."""
    monkeypatch.delenv("TMPDIR", raising=False)
    with ServiceProcess(tmp_path) as service:
        metrics(service)
        maps = psutil.Process(service.workers()[0]).memory_maps()
    folders = [Path(each.path).parents[1] for each in maps if "zeus-service-counters-" in each.path]
    assert folders
    assert set(folders) == {Path("/dev/shm")}


def test_trials_and_joules_are_counted_once_and_without_a_series_per_job(
    own_service: ServiceProcess, api: Api
) -> None:
    post(api, "/jobs", spec_json(beta_knob=None))
    for _ in range(4):
        post(api, "/jobs/job/trials", START)
    for sequence, energy_j, metric in ((1, 100.0, 0.5), (2, 250.0, 0.95)):
        for _ in range(2):  # the same again counts once
            post(
                api,
                "/jobs/job/trials/1/reports",
                report(sequence, energy_j=energy_j, metric=metric),
            )
    assert api("POST", "/jobs/job/trials/1/reports", report(3, energy_j=999.0)).status_code == 409
    post(api, "/jobs/job/trials/2/reports", report(1, energy_j=7.0))
    end = {"outcome": "diverged"}
    for _ in range(2):
        assert api("PATCH", "/jobs/job/trials/2", end).ok
    found = metrics(own_service)
    assert found["zeus_bso_trials_ended_total", "converged"] == 1
    assert found["zeus_bso_trials_ended_total", "diverged"] == 1
    assert found["zeus_bso_energy_joules_total",] == 257.0
    assert found["zeus_bso_trials_running",] == 2
    assert found["zeus_bso_jobs",] == 1

    before = metrics(own_service)
    for job in (f"job-{number}" for number in range(1, 10)):
        post(api, "/jobs", spec_json(job_id=job))
        post(api, f"/jobs/{job}/trials", START)
        post(api, f"/jobs/{job}/trials/1/reports", report(1, metric=0.95))
    found = metrics(own_service)
    assert found.keys() == before.keys()
    assert not any("job-" in part for key in found for part in key)
    assert (found["zeus_bso_jobs",], found["zeus_bso_trials_running",]) == (10, 2)

    let_leases_expire(own_service.database_url)
    assert metrics(own_service)["zeus_bso_trials_running",] == 0
    post(api, "/jobs/job/trials", START)  # the two others are lost
    found = metrics(own_service)
    assert found["zeus_bso_trials_ended_total", "lost"] == 2
    assert found["zeus_bso_trials_running",] == 1

    own_service.stop()
    own_service.start()
    found = metrics(own_service)
    assert found["zeus_bso_trials_running",] == 1
    assert ("zeus_bso_trials_ended_total", "lost") not in found


def take_the_database_away(service: ServiceProcess) -> None:
    database = Path(service.database_url.removeprefix("sqlite:///"))
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    database.mkdir()


def lines(service: ServiceProcess, count: int = 1) -> list[str]:
    """The log's lines about requests, once there are that many."""

    def found() -> list[str]:
        return [line for line in service.log.read_text().splitlines() if "status" in line]

    wait_until(lambda: len(found()) >= count)
    return found()


def test_each_request_has_one_line_in_the_log(own_service: ServiceProcess) -> None:
    before = len(lines(own_service))  # until /healthz answered
    answer = requests.post(f"{own_service.url}/api/v1/jobs", json=spec_json(), timeout=LIMIT_S)
    requests.get(f"{own_service.url}/api/v1/jobs/other?secret=1", timeout=LIMIT_S)
    requests.get(f"{own_service.url}/%0anothing", timeout=LIMIT_S)
    first, second, third = lines(own_service, before + 3)[before:]
    route = "/api/v1/jobs"
    for part in (f"method=POST route={route} status=201 milliseconds=", " job_id=job ",
                 f" request_id={answer.headers['X-Request-ID']}"):  # fmt: skip
        assert part in first
    assert f"method=GET route={route}/{{job_id}} status=404" in second
    assert " job_id=other " in second
    assert "secret" not in second
    assert "route= status=404" in third
    assert "nothing" not in third


def test_every_line_of_the_log_may_be_json(tmp_path: Path) -> None:
    env = {"ZEUS_BSO_LOG_FORMAT": "json", "ZEUS_BSO_LOG_LEVEL": "debug"}
    with ServiceProcess(tmp_path, **env) as service:
        path = f"{service.url}/api/v1/jobs"
        answer = requests.post(
            path, json=spec_json(), headers={"X-Request-ID": "a-1"}, timeout=LIMIT_S
        )
        with socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT_S) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            connection.recv(1000)
        take_the_database_away(service)
        assert requests.get(path, timeout=LIMIT_S).status_code == 503
    assert answer.headers["X-Request-ID"] == "a-1"
    records = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert {"gunicorn.error", "zeus_service.api.monitoring"} <= {
        record["logger"] for record in records
    }
    (line,) = (record for record in records if record.get("status") == 201)
    assert (line["method"], line["route"]) == ("POST", "/api/v1/jobs")
    assert (line["job_id"], line["request_id"], line["level"]) == ("job", "a-1", "INFO")
    assert 0 < line["milliseconds"] < 60_000
    assert any("Invalid request" in record["message"] for record in records)


def test_a_request_id_is_given_back_unless_it_could_mislead(service: ServiceProcess) -> None:
    for path in ("/healthz", "/api/v1/jobs", "/nothing", "/api/v1/jobs/nobody"):
        for fit in ("a", "0" * 128, "9f-A._:=/+"):
            assert request_id(f"{service.url}{path}", {"X-Request-ID": fit}) == fit
    for path in ("/healthz", "/nothing"):
        for other in ("", "0" * 129, "a b", "a;b", "é", 'a"b', "a\tb", "{}"):
            headers = {"X-Request-ID": other.encode("latin-1")}
            assert re.fullmatch("[0-9a-f]{32}", request_id(f"{service.url}{path}", headers))
        assert re.fullmatch("[0-9a-f]{32}", request_id(f"{service.url}{path}", {}))


def request_id(url: str, headers: Mapping[str, str | bytes]) -> str:
    """The request's id in the answer."""
    return requests.get(url, headers=headers, timeout=LIMIT_S).headers["X-Request-ID"]


def format_with(formatter: logging.Formatter, message: str, error: Exception | None = None) -> str:
    exc_info = (type(error), error, None) if error else None
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (message,), exc_info)
    return formatter.format(record)


@given(st.text(), st.text())
def test_no_text_can_forge_a_line(message: str, error: str) -> None:
    """A line that is not indented begins a record, and JSON is one line."""
    text = format_with(TextFormatter(), message, ValueError(error))
    first, *rest = text.splitlines()
    assert first.startswith("[")
    assert all(line.startswith("    ") for line in rest)
    line = format_with(JSONFormatter(), message, ValueError(error))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == message
