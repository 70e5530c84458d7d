"""`zeus-service jobs` and `show`, on the service's machine and from another."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result
from service.api.wires import Api
from service.jobs import START, spec_json
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S
from zeus_service.cli import main

TOKENS = {
    "ZEUS_BSO_TOKEN": "may-read-and-write-0123456789",
    "ZEUS_BSO_READ_TOKEN": "may-only-read-0123456789",
}
LONG = "j" * 200


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that wants tokens, with a job of a long name and more jobs than fit a page."""
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(folder, **TOKENS) as process:
        api = Api(process.url, Authorization=f"Bearer {TOKENS['ZEUS_BSO_TOKEN']}")

        def post(path: str, body: dict[str, Any]) -> None:
            assert api("POST", f"/jobs{path}", body).ok

        for job_id in (LONG, *(f"job-{number}" for number in range(101))):
            post("", spec_json(job_id=job_id, policy="zeus"))
        for number in (1, 2):
            post(f"/{LONG}/trials", START)
            figures = {"epoch": 3, "time_s": 10.0 * number, "energy_j": 500.0, "metric": 0.95}
            post(f"/{LONG}/trials/{number}/reports", {"sequence": 1, **figures})
        yield process


def command(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    return CliRunner().invoke(main, [*arguments], input=stdin, env={"COLUMNS": "40", **env})


def both_ways(service: ServiceProcess, *arguments: str) -> str:
    """What a command prints, which must be the same on the service's machine and from another."""
    here = command(*arguments, ZEUS_BSO_DATABASE_URL=service.database_url)
    there = command(*arguments, f"--url={service.url}", **TOKENS)
    assert (here.exit_code, there.exit_code) == (0, 0), (here.output, there.output)
    assert here.stdout == there.stdout
    return here.stdout


def test_all_jobs_are_listed_with_their_whole_ids_however_narrow(service: ServiceProcess) -> None:
    head, *rows = both_ways(service, "jobs").splitlines()
    for name in ("job", "state", "best batch size", "trials", "last change"):
        assert name in head
    assert len(rows) == 102
    assert any(row.split()[:4] == [LONG, "learning", "32", "2"] for row in rows)


def test_what_was_saved_is_shown_with_its_intervals(service: ServiceProcess) -> None:
    of_one = both_ways(service, "savings", LONG, "--weeks=2")
    # The default took 500 J and 10 s, and so did the next batch size, in 20 s.
    assert f"job '{LONG}' has saved 0 J (-" in of_one
    rows = [line.split() for line in of_one.splitlines()]
    assert rows[-1][1:3] == ["2", "0"]  # recurrences, joules
    of_all = both_ways(service, "savings")
    assert "1 job has saved 0 J (-" in of_all
    assert "101 jobs have no baseline yet" in of_all
    assert "unknown until a run with it has converged" in both_ways(service, "savings", "job-7")
    found = json.loads(both_ways(service, "savings", LONG, "--json"))
    assert (found["recurrences"], found["spent"]["energy_j"]) == (2, 1000.0)
    assert found["saved"]["energy_j"]["low"] < 0 < found["saved"]["energy_j"]["high"]


def test_a_job_is_shown_with_every_column_however_narrow(service: ServiceProcess) -> None:
    shown = both_ways(service, "show", LONG)
    assert "best batch size 32" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["32", "1", "750", "J", "\N{EN DASH}", "\N{EN DASH}", "best"] in rows
    assert ["1", "32", "explore", "converged", "3", "10.0", "500.0", "750.0"] in rows


def test_both_print_json(service: ServiceProcess) -> None:
    jobs = json.loads(both_ways(service, "jobs", "--json"))
    assert len(jobs) == 102
    (job,) = [job for job in jobs if job["job_id"] == LONG]
    shown = json.loads(both_ways(service, "show", LONG, "--json", "--trials=1"))
    assert job.items() <= shown.items()
    assert [trial["trial_number"] for trial in shown["latest_trials"]] == [2]


@pytest.mark.parametrize("name", TOKENS)
def test_any_of_its_tokens_will_do(service: ServiceProcess, name: str) -> None:
    assert command("jobs", f"--url={service.url}/", **{name: TOKENS[name]}).exit_code == 0


def error(result: Result) -> str:
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    return line


def test_what_went_wrong_is_reported(service: ServiceProcess) -> None:
    url = f"--url={service.url}"
    for env in ({}, {"ZEUS_BSO_TOKEN": "an-old-one-0123456789"}):
        refused = error(command("jobs", url, **env))
        assert "send a token of this service" in refused
        assert "set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN" in refused
    assert "no job 'nobody'" in error(command("show", "nobody", url, **TOKENS))
    port = free_port()
    assert f"no answer from http://127.0.0.1:{port}" in error(
        command("jobs", f"--url=http://127.0.0.1:{port}")
    )
    for address in ("127.0.0.1:8765", "ftp://host", "http://"):
        assert f"{address!r} is not a service URL" in error(command("jobs", f"--url={address}"))


@pytest.mark.parametrize("scheme", ["http://", "ftp://", ""])
def test_a_secret_in_an_address_is_not_printed(scheme: str) -> None:
    refused = error(command("jobs", f"--url={scheme}zeus:/se@cret/@host:1"))
    assert "use http://HOST:PORT, and set ZEUS_BSO_READ_TOKEN" in refused
    assert "cret" not in refused


@contextlib.contextmanager
def server(status: int, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """A web server that is no zeus-service: its URL, and the tokens that it was sent."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_arguments: Any) -> None:
            """Keep stderr clean."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", seen
        running.shutdown()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_server_of_another_kind_is_reported(status: int) -> None:
    with server(status) as (url, _):
        assert f"{url} is not a zeus-service" in error(command("jobs", f"--url={url}"))


def test_a_token_follows_no_redirect() -> None:
    with server(200) as (elsewhere, seen), server(302, Location=elsewhere) as (url, asked):
        assert "it answered 302" in error(command("jobs", f"--url={url}", **TOKENS))
        assert asked == [f"Bearer {TOKENS['ZEUS_BSO_READ_TOKEN']}"]
        assert seen == []


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_deletion_is_asked_about(
    service: ServiceProcess, tmp_path: Path, answer: str, gone: bool
) -> None:
    env = {"ZEUS_BSO_DATABASE_URL": service.database_url}
    api, headers = (
        f"{service.url}/api/v1/jobs",
        {"Authorization": f"Bearer {TOKENS['ZEUS_BSO_TOKEN']}"},
    )
    asked = spec_json(job_id="asked")
    assert requests.post(api, json=asked, headers=headers, timeout=LIMIT_S).ok
    result = command("delete", "asked", stdin=answer, **env)
    assert "Delete job 'asked'" in result.stderr
    assert result.exit_code == (0 if gone else 1)
    status = requests.get(f"{api}/asked", headers=headers, timeout=LIMIT_S).status_code
    assert (status == 404) is gone
    if not gone:
        assert command("delete", "asked", "--yes", **env).exit_code == 0
