"""The key is made once, and shared."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from service.conftest import application
from zeus_service.db import secret_key


def test_all_who_ask_at_once_get_the_same_key_and_it_stays(app: Flask) -> None:
    def read(_: int) -> str:
        with app.app_context():
            return secret_key.read_or_make()

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(read, range(16)))
    assert len(keys) == 1
    assert len(keys.pop()) == 64
    with application(app.extensions["zeus_config"].database_url):
        assert secret_key.read_or_make() in {read(0)}


def test_no_log_of_statements_has_the_key(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "sqlalchemy.engine"),
        application(app.extensions["zeus_config"].database_url),
    ):
        made = secret_key.read_or_make()
        read = secret_key.read_or_make()
    assert "INSERT INTO secrets" in caplog.text
    assert made == read
    assert made not in caplog.text
