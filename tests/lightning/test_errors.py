"""Errors travel between ranks as plain values."""

from __future__ import annotations

import json

import pytest

import zeus_lightning
from zeus_lightning.errors import ZeusError, from_plain, to_plain

ERRORS = [name for name in zeus_lightning.__all__ if name.endswith(("Error", "Unavailable"))]
ERRORS += ["ZeusJobConflict", "ZeusTrialFailed"]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_rebuilt_from_plain_values(name: str) -> None:
    error = getattr(zeus_lightning, name)("what happened", {"status": 409})
    rebuilt = from_plain(json.loads(json.dumps(to_plain(error))))
    assert type(rebuilt) is type(error)
    assert (str(rebuilt), rebuilt.fields) == ("what happened", {"status": 409})


def test_what_is_no_error_of_this_package_is_not_rebuilt() -> None:
    for kind in ("KeyError", "Any", "to_plain"):
        with pytest.raises(KeyError):
            from_plain((kind, "", {}))


def test_every_error_is_a_zeus_error() -> None:
    assert len(ERRORS) == len(ZeusError.__subclasses__()) + 1 + 2  # two are ZeusServiceErrors
    assert all(issubclass(getattr(zeus_lightning, name), ZeusError) for name in ERRORS)
