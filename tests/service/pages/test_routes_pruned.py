"""The page of a job whose runs were pruned says so, and denies none of them."""

from __future__ import annotations

import pytest
from flask import Flask
from service.jobs import let_leases_expire
from service.pages.test_routes import add_job
from sqlalchemy import update
from zeus_service import maintenance, optimizer
from zeus_service.db.tables import TRIALS
from zeus_service.db.transactions import transaction
from zeus_service.messages import TrialEnd


def prune_all(database_url: str) -> None:
    """Drop all trials that have ended."""
    let_leases_expire(database_url)
    with transaction() as connection:
        ended = update(TRIALS).where(TRIALS.c.outcome.is_not(None))
        connection.execute(ended.values(ended_at=1.0))
    maintenance.prune(older_than_s=3600.0, keep=0)


@pytest.mark.parametrize("figure", ["valley", "costs", "regret", "saved"])
def test_a_figure_without_runs_says_that_they_were_pruned(
    app: Flask, database_url: str, figure: str
) -> None:
    add_job()
    client = app.test_client()

    def note() -> str:
        return str(client.get(f"/job/job/figures/{figure}").json["note"])

    assert "The runs that have ended were pruned." not in note()
    prune_all(database_url)
    assert note().startswith("The runs that have ended were pruned.")
    if figure in ("valley", "costs"):
        add_job("running", runs=0)
        optimizer.start_trial("running", None)
        figures = client.get(f"/job/running/figures/{figure}").json
        assert figures["note"] == "No run has ended yet."


def test_the_list_of_runs_says_that_all_were_pruned(app: Flask, database_url: str) -> None:
    add_job()
    optimizer.end_trial("job", 4, TrialEnd(outcome="errored"))
    prune_all(database_url)
    client = app.test_client()
    assert "All runs were pruned." in client.get("/job/job?part=trials").text
    assert "No run matches." in client.get("/job/job?part=trials&outcome=lost").text
