"""Readiness reads the schema's revision, writes nothing, and costs little however often asked."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from flask import Flask
from service.conftest import application, on_sqlite
from service.db.races import on_servers
from service.db.test_cost import statements
from service.jobs import START, register
from sqlalchemy import make_url
from zeus_service.api import monitoring
from zeus_service.db.migrate import known_revisions
from zeus_service.db.tables import db


@on_sqlite
def test_the_answer_is_repeated_for_a_while(
    app: Flask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = app.test_client()
    with statements() as seen:
        client.get("/readyz")
        asked = len(seen)
        assert {client.get("/readyz").status_code for _ in range(10)} == {200}
        assert len(seen) == asked
        (head,) = known_revisions()[:1]
        set_revision("9999")
        monkeypatch.setattr(monitoring, "READY_S", 0.0)
        assert client.get("/readyz").status_code == 503
        monkeypatch.setattr(monitoring, "READY_S", 60.0)
        for _ in range(10):
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
    assert caplog.text.count("is at revision 9999") == 1
    set_revision(head)
    monkeypatch.setattr(monitoring, "READY_S", 0.0)
    assert client.get("/readyz").status_code == 200


def set_revision(revision: str) -> None:
    with db.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :x"), {"x": revision})


@on_servers
def test_pages_are_served_from_a_standby_that_only_reads(database_url: str) -> None:
    with application(database_url):
        register()
    option = {
        "postgresql": {"options": "-c default_transaction_read_only=on"},
        "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    }[make_url(database_url).get_backend_name()]
    url = make_url(database_url).update_query_dict(option).render_as_string(hide_password=False)
    with application(url) as standby:
        client = standby.test_client()
        assert client.post("/api/v1/jobs/job/trials", json=START).status_code == 503
        for path in ("/readyz", "/", "/job/job", "/api/v1/jobs"):
            assert client.get(path).status_code == 200, path
