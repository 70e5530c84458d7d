"""Errors, and what does not exist, are pages for a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from service.pages.test_routes import add_job
from zeus_service import create_app
from zeus_service.config import Config


def test_a_database_that_is_away_is_a_page_that_tries_again(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path / 'nothing.sqlite3'}"))
    for address in ("/", "/job/job"):
        answer = app.test_client().get(address)
        assert answer.status_code == 503
        assert 'http-equiv="refresh"' in answer.text
        assert str(tmp_path) not in answer.text


@pytest.mark.parametrize(
    "address",
    ["/job/nobody", "/job/nobody/trials.csv", "/job/nobody/figures", "/job/nobody/trial/1",
     "/job/job/trial/99", "/assets/nothing.css", "/job/nobody/delete"],
)  # fmt: skip
def test_what_does_not_exist_is_a_page_that_says_so(client: FlaskClient, address: str) -> None:
    add_job()
    answer = client.get(address)
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "Not Found" in answer.text
    assert "`" not in answer.text  # no command: on a page there are links
    assert "Content-Security-Policy" in answer.headers


@pytest.mark.parametrize("address", ["/jobs", "/nothing", "/job/a/b/c"])
def test_an_unknown_path_is_a_page_for_browsers_alone(client: FlaskClient, address: str) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    answer = client.get(address, headers=browser)
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "There is no such page" in answer.text
    assert "Content-Security-Policy" in answer.headers
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        assert client.get(address, headers=headers).mimetype == "application/problem+json"
