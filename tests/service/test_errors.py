"""Every error of a use case says what it is on the wire."""

from __future__ import annotations

from zeus_service.errors import OptimizerError


def test_each_error_has_a_status_a_code_and_a_description() -> None:
    errors = OptimizerError.__subclasses__()
    assert errors
    for error in errors:
        assert 400 <= error.status < 600, error
        assert error.code.isidentifier(), error
        assert error.__doc__, error
