"""Errors are pages."""

from __future__ import annotations

from pathlib import Path

from zeus_service import create_app
from zeus_service.config import Config


def test_a_database_that_is_away_is_a_page_that_tries_again(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path / 'nothing.sqlite3'}"))
    for address in ("/", "/job/job"):
        answer = app.test_client().get(address)
        assert answer.status_code == 503
        assert 'http-equiv="refresh"' in answer.text
        assert str(tmp_path) not in answer.text
