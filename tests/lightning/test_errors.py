"""Errors travel between ranks."""

from __future__ import annotations

import pickle

import pytest

import zeus_lightning
from zeus_lightning.errors import ZeusError

ERRORS = [name for name in zeus_lightning.__all__ if name.endswith(("Error", "Unavailable"))]
ERRORS += ["ZeusJobConflict", "ZeusTrialFailed"]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_a_zeus_error_that_another_process_gets_whole(name: str) -> None:
    error = getattr(zeus_lightning, name)("what happened", {"status": 409})
    received = pickle.loads(pickle.dumps(error))
    assert isinstance(received, ZeusError)
    assert type(received) is type(error)
    assert (received.message, received.fields) == ("what happened", {"status": 409})
