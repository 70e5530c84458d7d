"""Every error of a use case says what it is on the wire."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy.exc import OperationalError
from zeus_service.errors import Contended, OptimizerError


def test_each_error_has_a_status_a_code_and_a_description() -> None:
    errors = OptimizerError.__subclasses__()
    assert errors
    for error in errors:
        assert 400 <= error.status < 600, error
        assert error.code.isidentifier(), error
        assert error.__doc__, error


def test_what_is_locked_is_logged_with_the_databases_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = Contended("this is locked")
    error.__cause__ = OperationalError("SELECT 1", {}, Exception("canceled due to lock timeout"))
    error.log(logging.getLogger())
    Contended("others wait").log(logging.getLogger())
    assert caplog.messages == ["this is locked (canceled due to lock timeout)", "others wait"]
