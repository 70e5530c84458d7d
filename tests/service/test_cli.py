"""`zeus-service` as an operator runs it."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from databases import migrated_database
from flask import Flask
from service.jobs import register, report
from service_fork import run_to_its_end
from service_process import free_port
from sqlalchemy import make_url, update
from zeus_service import optimizer
from zeus_service.cli import main
from zeus_service.config import Config, load_config
from zeus_service.db.session import transaction
from zeus_service.db.tables import Report, Trial
from zeus_service.errors import Unusable


def zeus_service(
    *arguments: str, database_url: str, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: `serve` in a process of its own, the others in this one."""
    env = {"COLUMNS": "150", "ZEUS_BSO_DATABASE_URL": database_url, **env}
    if "serve" in arguments:
        return run_to_its_end(*arguments, folder=Path.cwd(), **env)
    result = CliRunner().invoke(main, arguments, input=stdin, env=env)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def one_error(result: subprocess.CompletedProcess[str]) -> str:
    """The one message that an expected error ends with; no traceback."""
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'service.sqlite3'}"


@pytest.fixture
def database_url(tmp_path: Path) -> Iterator[str]:
    """SQLite is enough here; for the fixture `app`."""
    with migrated_database("sqlite", tmp_path) as url:
        yield url


def test_a_port_in_use_is_reported(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        result = zeus_service("serve", f"--bind={bind}", database_url=url)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "Connection in use" in result.stderr


@pytest.mark.parametrize(
    ("database_url", "command"),
    [
        ("sqlite:////proc/nowhere/x.sqlite3", ("serve", "--bind=127.0.0.1:0")),
        ("sqlite:////dev/null/x.sqlite3", ("db", "upgrade")),
        ("sqlite:////etc", ("db", "upgrade")),
    ],
)
def test_a_database_that_cannot_be_opened_is_reported_by_name(
    database_url: str, command: tuple[str, ...]
) -> None:
    error = one_error(zeus_service(*command, database_url=database_url))
    assert database_url.removeprefix("sqlite:///") in error
    assert "ZEUS_BSO_DATABASE_URL" in error


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ZEUS_BSO_LOG_LEVEL", "LOUD"),
        ("ZEUS_BSO_INSECURE", "perhaps"),
        ("ZEUS_BSO_ALLOWED_HOSTS", "localhost, proxy.example:8443"),
        ("ZEUS_BSO_ALLOWED_HOSTS", "https://proxy.example"),
    ],
)
def test_an_invalid_variable_is_reported_by_name(url: str, variable: str, value: str) -> None:
    result = zeus_service("jobs", **{"database_url": url, variable: value})
    assert f"{variable}='{value}'" in one_error(result)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("ZEUS_BSO_TOKENS", "ZEUS_BSO_TOKEN"),
        ("zeus_bso_databse_url", "ZEUS_BSO_DATABASE_URL"),
        ("ZEUS_BSO_TOKEN_FIEL", "ZEUS_BSO_TOKEN_FILE"),
        ("ZEUS_BSO_", "ZEUS_BSO_TOKEN"),
        ("ZEUS_BSO_PORT", "ZEUS_BSO_LOG_FORMAT"),
        ("ZEUS_BSO_PORT_TOKEN", "ZEUS_BSO_TOKEN"),
    ],
)
def test_a_misspelt_setting_is_an_error_that_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misspelt: str, meant: str, in_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if in_file:
        Path(".env").write_text(f"ZEUS_PUBLISH=127.0.0.1:1\n{misspelt}=a-very-secret-value\n")
    else:
        monkeypatch.setenv(misspelt, "a-very-secret-value")
    with pytest.raises(Unusable) as error:
        load_config()
    assert str(error.value) == f"unknown setting {misspelt.upper()}; did you mean {meant}?"


_UNREACHABLE = [
    "mysql://u:secret@127.0.0.1:1/db",
    "postgresql://u:secret@127.0.0.1:1/db",
    "postgresql://u@127.0.0.1:1/db?password=secret",
    "postgresql://u:secret@127.0.0.1:1/db?sslmode=nope",
    "postgresql://u:secret@127.0.0.1:1/db?foo=secret",
    "mysql://u:secret@127.0.0.1:1/db?foo=secret",
    "mysql://u:secret@127.0.0.1:1/db?ssl=true",
]
"""Some for an option or a name that their driver does not take."""


@pytest.mark.parametrize(
    ("database_url", "command"),
    [
        *((url, ("jobs",)) for url in _UNREACHABLE),
        *((_UNREACHABLE[0], ("db", command)) for command in ("upgrade", "current")),
        *((url, ("serve", "--bind=127.0.0.1:0")) for url in (_UNREACHABLE[1], _UNREACHABLE[-1])),
    ],
)
def test_a_server_that_cannot_be_reached_is_reported_by_its_url_in_every_command(
    database_url: str, command: tuple[str, ...]
) -> None:
    error = one_error(zeus_service(*command, database_url=database_url))
    shown = make_url(Config(database_url=database_url).database_url).set(query={})
    assert f"the database {shown.render_as_string(hide_password=True)}: " in error
    assert "secret" not in error


def test_a_database_url_may_name_any_driver_of_its_database() -> None:
    url = "mysql+asyncmy://u:p%40@h:3307/d?charset=utf8mb4"
    assert Config(database_url=url).database_url == url.replace("asyncmy", "pymysql")


def test_jobs_and_their_estimates_are_printed(app: object, url: str) -> None:
    register(job_id="nightly", policy="zeus")
    optimizer.start_trial("nightly")
    last = report(epoch=3, time_s=10.0, energy_j=500.0, metric=0.95)
    optimizer.report("nightly", 1, last)
    listed = zeus_service("jobs", database_url=url)
    shown = zeus_service("show", "nightly", database_url=url)
    rebuilt = zeus_service("rebuild", "nightly", database_url=url)
    assert listed.stdout.splitlines()[1].split()[:4] == ["nightly", "learning", "32", "1"]
    assert "nightly: learning, best" in shown.stdout
    assert "best batch size 32" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["32", "1", "750", "J", "\N{EN DASH}", "\N{EN DASH}", "best"] in rows
    assert "next 16: not measured yet, may beat batch size 32" in shown.stdout
    assert ["1", "32", "explore", "converged", "3", "10.0", "s", "500", "J", "750", "J"] in rows
    assert "match the replay" in rebuilt.stdout


def test_a_job_that_learns_its_target_is_shown_with_the_baseline_that_comes_next(
    app: object, url: str
) -> None:
    register(target_metric=None)
    optimizer.start_trial("job")
    shown = zeus_service("show", "job", database_url=url).stdout
    assert "job: learning, best" in shown
    assert "target: val_acc (0 of 3 baselines completed), in at most 10 epochs" in shown
    assert ["1", "32", "baseline", "running"] in [line.split()[:4] for line in shown.splitlines()]


def test_the_load_of_the_host_is_shown_next_to_its_run(app: Flask, url: str) -> None:
    register()
    optimizer.start_trial("job")
    for number, load in ((1, None), (2, 0.44), (3, 2.34)):
        optimizer.report("job", 1, report(number, host_load=load))
        for text in (
            zeus_service("show", "job", database_url=url).stdout,
            app.test_client().get("/job/job").text,
            app.test_client().get("/job/job/trial/1").text,
        ):
            assert (f", host load {load:.1f}" if load else "running") in text
            assert ("host load" in text) is (load is not None)


def test_a_job_with_running_trials_is_deleted_only_by_force(app: object, url: str) -> None:
    register()
    optimizer.start_trial("job", None)
    for more in ([], ["--yes"]):
        error = one_error(zeus_service("delete", *more, "job", database_url=url))
        assert "running trials (1)" in error
    deleted = zeus_service("delete", "--force", "--yes", "job", database_url=url)
    assert "deleted job 'job'" in deleted.stdout
    assert "no jobs yet" in zeus_service("jobs", database_url=url).stdout


def test_old_reports_are_pruned_and_trials_stay(app: object, url: str) -> None:
    register()
    optimizer.start_trial("job")
    optimizer.report("job", 1, report(1))
    optimizer.end_trial("job", 1, "errored")
    with transaction() as session:
        session.execute(update(Trial).values(ended_at=0))
        session.execute(update(Report).values(reported_at=0))
    result = zeus_service("prune", "--older-than-days=180", database_url=url)
    assert result.stdout == "deleted reports: 1; rows of deleted jobs: 0\n"
    assert len(optimizer.list_trials("job")) == 1


@pytest.mark.parametrize("command", ["show", "delete"])
def test_a_job_that_is_not_known_is_reported(app: object, url: str, command: str) -> None:
    """And not asked about."""
    assert "no job 'nightly'" in one_error(zeus_service(command, "nightly", database_url=url))


@pytest.mark.parametrize("command", [("jobs",), ("db", "current")])
def test_looking_makes_no_database(command: tuple[str, ...], url: str, tmp_path: Path) -> None:
    empty = {"ZEUS_BSO_LOG_LEVEL": "", "ZEUS_BSO_INSECURE": ""}  # as if they were not there
    error = one_error(zeus_service(*command, database_url=url, **empty))
    remedies = ("ZEUS_BSO_DATABASE_URL=sqlite:///FILE", "otherwise start the service")
    for part in (f"no database at {tmp_path}", *remedies):
        assert part in error
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_a_newer_version_is_reported_by_name(app: object, url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    bind = f"--bind=127.0.0.1:{free_port()}"
    for command in (("serve", bind), ("jobs",)):
        error = one_error(zeus_service(*command, database_url=url))
        assert "9999" in error
        assert "the newer version" in error


def test_a_database_that_fails_is_reported_with_its_own_message(app: object, url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("DROP TABLE jobs")
    for command in (("jobs",), ("delete", "--yes", "nightly")):
        assert "no such table: jobs" in one_error(zeus_service(*command, database_url=url))


def test_names_are_printed_as_they_are_but_for_control_characters(app: object, url: str) -> None:
    control = "\x9b31m"
    register(job_id="a[/b]", monitor=f"val[/acc]{control}")
    optimizer.start_trial("a[/b]", None)
    for command in (("show", "a[/b]"), ("jobs",), ("show", control)):
        result = zeus_service(*command, database_url=url)
        assert control not in result.stdout + result.stderr, command
    assert "a[/b]" in zeus_service("jobs", database_url=url).stdout
    assert r"val[/acc]\x9b31m 0.9" in zeus_service("show", "a[/b]", database_url=url).stdout
