"""The job that a callback's arguments and a program make; see also `test_bso_bad_input.py`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from programs import Data, Net, trainer

from zeus_lightning.run.job import JobArguments


def arguments(**fields: Any) -> JobArguments:
    defaults: dict[str, Any] = {
        "target_metric": 1,
        "monitor": "val_acc",
        "mode": "max",
        "job_id": None,
        "batch_sizes": None,
        "default_batch_size": None,
        "max_epochs": None,
        "eta_knob": None,
        "beta_knob": None,
        "policy": None,
        "lr_scaling": None,
    }
    return JobArguments(**(defaults | fields))


def attached(batch_size: int = 8, **options: Any) -> Any:
    """A Trainer whose fit has just begun."""
    runner, module, data = trainer(**options), Net(), Data(batch_size)
    runner.strategy.connect(module)
    runner._data_connector.attach_data(module, datamodule=data)
    module.trainer = runner
    return runner


def job_of(runner: Any, **fields: Any) -> Any:
    return arguments(**fields).job(runner, runner.lightning_module)


def test_a_budget_in_steps_bounds_the_epochs() -> None:
    assert job_of(attached(max_epochs=None, max_steps=50)).max_epochs == 50
    assert job_of(attached(max_epochs=-1, max_steps=50), max_epochs=3).max_epochs == 3
    assert job_of(attached(max_epochs=7, max_steps=50)).max_epochs == 7
    assert job_of(attached(max_epochs=None, max_steps=sys.maxsize)).max_epochs == 2**31 - 1


def test_an_argument_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZEUS_JOB_ID", "nightly")
    assert job_of(attached(), job_id="mine").job_id == "mine"
