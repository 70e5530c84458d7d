"""Errors travel between ranks."""

from __future__ import annotations

import pickle

import pytest

from zeus_lightning.errors import ZeusJobConflict, ZeusPowerError, ZeusTrialFailed


@pytest.mark.parametrize("error_type", [ZeusJobConflict, ZeusPowerError, ZeusTrialFailed])
def test_another_process_gets_an_error_whole(error_type: type[ZeusPowerError]) -> None:
    received = pickle.loads(pickle.dumps(error_type("what happened", {"status": 409})))
    assert type(received) is error_type
    assert (received.message, received.fields) == ("what happened", {"status": 409})
