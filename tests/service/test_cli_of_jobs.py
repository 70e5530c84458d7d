"""`zeus-service jobs`, `show`, `savings` and `delete` on a database with many jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from databases import migrated_database
from service.conftest import application
from service.jobs import HARDWARE, register, report
from service.test_cli import zeus_service
from zeus_service import optimizer

LONG = "j" * 200


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with a job of a long name that has saved, and more jobs than a page has."""
    with migrated_database("sqlite", tmp_path_factory.mktemp("service")) as url:
        with application(url):
            register(job_id=LONG, policy="zeus", mab_num_explorations=1, hardware=None)
            for number in range(101):
                register(job_id=f"job-{number}", policy="zeus")
            optimizer.start_trial(LONG, hardware=HARDWARE)
            optimizer.end_trial(LONG, 1, "errored")
            estimating = replace(HARDWARE, meter="cpu-estimate", estimated=True)
            for number, energy_j in ((2, 14.4e6), (3, 3.6e6)):
                optimizer.start_trial(LONG, hardware=estimating)
                figures = {"time_s": energy_j / 1000, "energy_j": energy_j, "metric": 0.95}
                optimizer.report(LONG, number, report(1, **figures))
        yield url


def test_all_jobs_are_listed_with_their_whole_ids_however_narrow(database_url: str) -> None:
    listed = zeus_service("jobs", database_url=database_url, COLUMNS="40").stdout
    head, *rows = listed.splitlines()
    for name in ("job", "state", "best batch size", "trials", "last change"):
        assert name in head
    assert len(rows) == 102
    assert any(row.split()[:4] == [LONG, "learning", "16", "3"] for row in rows)


def test_what_was_saved_is_shown_with_its_intervals(database_url: str) -> None:
    def shown(job_id: str, **prices: str) -> str:
        return zeus_service("show", job_id, database_url=database_url, **prices).stdout

    saved = (
        "saved compared with the default batch size, 32: "
        r"energy 3\.00 kWh \(\S+ to \S+ kWh\), time 3\.00 h \(\S+ to \S+ h\)"
    )
    worth = r", EUR 1\.50, 1\.20 kg CO2e"
    meter = "; energy is estimated by cpu-estimate\n"
    prices = {"CURRENCY": "EUR", "PRICE_PER_KWH": "0.5", "CARBON_INTENSITY": "400"}
    settings = {f"ZEUS_BSO_{name}": value for name, value in prices.items()}
    assert re.search(saved + worth + meter, shown(LONG, **settings))
    assert re.search(saved + meter, shown(LONG))
    unknown = "savings are unknown until a run with the default batch size, 32, converges"
    assert unknown in shown("job-7")


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_deletion_is_asked_about(database_url: str, answer: str, gone: bool) -> None:
    with application(database_url):
        register(job_id="asked")
        result = zeus_service("delete", "asked", database_url=database_url, stdin=answer)
        assert "Delete job 'asked'" in result.stderr
        assert result.returncode == (0 if gone else 1)
        assert [job.job_id == "asked" for job, _ in optimizer.list_jobs(limit=1)] == [not gone]
        if not gone:
            deleted = zeus_service("delete", "asked", "--yes", database_url=database_url)
            assert deleted.returncode == 0
