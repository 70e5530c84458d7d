"""A backup is restored by the commands that the operator's manual names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from databases import POSTGRESQL, migrated_database, new_database
from postgres_cluster import binaries
from service.conftest import application
from service.jobs import register, report
from sqlalchemy import make_url
from waiting import LIMIT_S
from zeus_service import maintenance, optimizer
from zeus_service.api.messages import Job

MANUAL = Path(__file__).parents[3] / "docs" / "operate.md"


def run_documented(program: str, url: str, folder: Path) -> None:
    """Run the manual's command line of a program on another database than `zeus`."""
    found = re.search(rf"^{program} [^#\n]*", MANUAL.read_text(), re.MULTILINE)
    assert found
    to = make_url(url)
    names = {"--dbname=zeus": f"--dbname={to.database}", "--username=zeus": f"-U{to.username}"}
    arguments = [names.get(word, word) for word in found[0].split()]
    arguments = [to.database if word == "zeus" else word for word in arguments]
    server = {"PGHOST": to.host, "PGPORT": str(to.port or 5432), "PGUSER": to.username}
    programs = f"{binaries()}:{os.environ['PATH']}"
    result = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **server, "PGPASSWORD": to.password or "", "PATH": programs},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def run_trial(report_it: bool) -> None:
    number = optimizer.start_trial("job")[1].trial_number
    if report_it:
        optimizer.report("job", number, report(1, metric=1.0))


def shown() -> Job:
    """The job as the API shows it."""
    return Job.with_estimates(*optimizer.describe_job("job"))


@pytest.mark.parametrize("kind", POSTGRESQL)
def test_a_dump_is_restored_onto_an_empty_server_and_over_what_is_there(
    kind: str, tmp_path: Path
) -> None:
    with migrated_database(kind, tmp_path) as url, new_database(kind, tmp_path) as empty:
        with application(url):
            register()
            run_trial(report_it=True)
            run_trial(report_it=False)
            before = shown()
        run_documented("pg_dump", url, tmp_path)
        with application(url):
            run_trial(report_it=True)
        for restored in (empty, url):
            run_documented("pg_restore", restored, tmp_path)
            with application(restored):
                assert shown() == before
                assert maintenance.rebuild("job")
                run_trial(report_it=True)
