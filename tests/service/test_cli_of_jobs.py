"""`zeus-service jobs`, `show`, `savings` and `delete` on a database with many jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from databases import migrated_database
from service.conftest import application
from service.jobs import register, report
from zeus_service import optimizer
from zeus_service.cli import main
from zeus_service.units import MINUS

LONG = "j" * 200


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with a job of a long name, and more jobs than fit a page of the API."""
    with migrated_database("sqlite", tmp_path_factory.mktemp("service")) as url:
        with application(url):
            for job_id in (LONG, *(f"job-{number}" for number in range(101))):
                register(job_id=job_id, policy="zeus")
            for number in (1, 2):
                optimizer.start_trial(LONG)
                figures = {"epoch": 3, "time_s": 10.0 * number, "energy_j": 500.0, "metric": 0.95}
                optimizer.report(LONG, number, report(1, **figures))
        yield url


@pytest.fixture
def in_application(database_url: str) -> Iterator[None]:
    with application(database_url):
        yield


def command(database_url: str, *arguments: str, stdin: str | None = None) -> Result:
    """Run a command in a narrow terminal."""
    env = {"COLUMNS": "40", "ZEUS_BSO_DATABASE_URL": database_url}
    return CliRunner().invoke(main, arguments, input=stdin, env=env)


def printed(database_url: str, *arguments: str) -> str:
    result = command(database_url, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_jobs_are_listed_with_their_whole_ids_however_narrow(database_url: str) -> None:
    head, *rows = printed(database_url, "jobs").splitlines()
    for name in ("job", "state", "best batch size", "trials", "last change"):
        assert name in head
    assert len(rows) == 102
    assert any(row.split()[:4] == [LONG, "learning", "32", "2"] for row in rows)


def test_what_was_saved_is_shown_with_its_intervals(database_url: str) -> None:
    # The default took 500 J and 10 s, and so did the next batch size, in 20 s.
    saved = f"saved compared with the default batch size, 32: 0 J ({MINUS}"
    assert saved in printed(database_url, "show", LONG)
    unknown = "savings are unknown until a run with the default batch size, 32, converges"
    assert unknown in printed(database_url, "show", "job-7")


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_deletion_is_asked_about(
    database_url: str, in_application: None, answer: str, gone: bool
) -> None:
    register(job_id="asked")
    result = command(database_url, "delete", "asked", stdin=answer)
    assert "Delete job 'asked'" in result.stderr
    assert result.exit_code == (0 if gone else 1)
    assert [job.job_id == "asked" for job, _ in optimizer.list_jobs(limit=1)] == [not gone]
    if not gone:
        assert command(database_url, "delete", "asked", "--yes").exit_code == 0
