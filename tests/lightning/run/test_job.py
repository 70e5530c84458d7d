"""The job that a callback's arguments and a program make; see also `test_bso_bad_input.py`."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
from programs import Data, Net, trainer

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.run.job import JobArguments


def arguments(**fields: Any) -> JobArguments:
    defaults: dict[str, Any] = {
        "target_metric": 1,
        "monitor": "val_acc",
        "mode": "max",
        "job_id": None,
        "batch_sizes": None,
        "default_batch_size": None,
        "batch_size_scope": "global",
        "batch_arg_name": "batch_size",
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


@pytest.mark.parametrize(
    "name",
    ["target_metric", "monitor", "mode", "batch_size_scope"],
)
def test_an_argument_without_a_default_of_none_is_required(name: str) -> None:
    with pytest.raises(ZeusConfigError, match=f"{name} is None; it must be"):
        arguments(**{name: None})


def test_what_the_arguments_leave_out_is_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZEUS_JOB_ID", raising=False)
    job = job_of(attached(batch_size=4, max_epochs=7, accumulate_grad_batches=2))
    assert (job.job_id, job.max_epochs, job.default_batch_size) == ("Net", 7, 8)
    assert job.batch_sizes == [2, 4, 8, 16, 32, 64]
    assert job.suggested == ["default_batch_size", "batch_sizes"]
    assert job_of(attached(), batch_sizes=[4, 8]).suggested == ["default_batch_size"]


def test_the_environment_names_the_job_where_no_argument_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZEUS_JOB_ID", "nightly")
    assert job_of(attached()).job_id == "nightly"
    assert job_of(attached(), job_id="mine").job_id == "mine"


def test_numpys_numbers_are_taken_as_they_are_printed() -> None:
    job = job_of(
        attached(),
        batch_sizes=np.array([16, 32]),
        default_batch_size=np.int64(16),
        max_epochs=np.int64(3),
        target_metric=np.float32(0.95),
        eta_knob=np.float32(0.3),
        beta_knob=np.float64(1.5),
        policy={"num_pruning_rounds": np.int64(1), "seed": np.int32(7)},
    )
    assert (job.target_metric, job.eta_knob, job.beta_knob) == (0.95, 0.3, 1.5)
    json.dumps(job.to_json())


def test_a_budget_in_steps_bounds_the_epochs() -> None:
    assert job_of(attached(max_epochs=None, max_steps=50)).max_epochs == 50
    assert job_of(attached(max_epochs=-1, max_steps=50), max_epochs=3).max_epochs == 3
    assert job_of(attached(max_epochs=7, max_steps=50)).max_epochs == 7
    assert job_of(attached(max_epochs=None, max_steps=sys.maxsize)).max_epochs == 2**31 - 1


def test_numbers_are_floats_whatever_was_given() -> None:
    job = job_of(attached(), eta_knob=1, beta_knob=2)
    assert [type(x) for x in (job.target_metric, job.eta_knob, job.beta_knob)] == [float] * 3


def test_only_what_is_given_is_sent() -> None:
    sent = job_of(attached()).registration()
    knobs = {"eta_knob", "beta_knob", "policy", "num_pruning_rounds", "window_size", "seed"}
    assert not knobs & sent.keys()
    options = {"name": "zeus", "window_size": 10}
    sent = job_of(attached(), eta_knob=0.3, beta_knob=math.inf, policy=options).registration()
    given = {name: value for name, value in sent.items() if name in knobs}
    assert given == {"eta_knob": 0.3, "beta_knob": None, "policy": "zeus", "window_size": 10}
    assert job_of(attached(), policy="zeus").registration()["policy"] == "zeus"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"rounds": 2}, "policy has the option 'rounds'; it can have name, num_pruning_rounds"),
        ({"num_pruning_rounds": -1}, "num_pruning_rounds is -1; it must be an integer, 0 to 100"),
        ({"window_size": 1001}, "window_size is 1001; it must be an integer, 0 to 1000"),
        ({"seed": True}, "seed is True; it must be an integer, 0 to"),
        ({"name": ""}, "the policy's name is ''"),
        (3, "policy is 3; it must be a name or options"),
    ],
)
def test_an_invalid_policy_is_named(policy: Any, message: str) -> None:
    with pytest.raises(ZeusConfigError, match=message):
        arguments(policy=policy)
