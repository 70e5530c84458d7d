"""Both sides of the wire mean the same."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError
from service.jobs import spec_json
from zeus_service.api import messages as service
from zeus_service.api.v1 import IDEMPOTENCY_KEY_PATTERN
from zeus_service.bandit import outcomes, spec, stopping
from zeus_service.bandit import policy as base
from zeus_service.bandit.spec import Hardware

from zeus_lightning import messages as client
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.run import job
from zeus_lightning.run.job import JobArguments
from zeus_lightning.run.record import RESUMABLE

_SERVICE_ONLY = {"early_stop", "lease_s", "mab_prior_mean", "mab_prior_precision"}
_SERVICE_ONLY |= {"mab_num_explorations"}
"""Fields of a job that the callback does not send."""

_STRUCTURE = {"type", "items", "properties", "anyOf", "enum"}


def types_of(model: type) -> dict[str, Any]:
    """The types of a message's fields, as JSON Schema without bounds and texts."""
    schema = TypeAdapter(model).json_schema()

    def structure(part: Any) -> Any:
        if isinstance(part, list):
            return sorted((structure(each) for each in part), key=str)
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return structure(schema["$defs"][part["$ref"].rpartition("/")[2]])
        kept = {key: structure(part[key]) for key in _STRUCTURE & part.keys() - {"properties"}}
        if "properties" in part:
            kept["properties"] = {name: structure(of) for name, of in part["properties"].items()}
        return kept

    types: dict[str, Any] = structure(schema)["properties"]
    return types


MESSAGES: list[tuple[type, type]] = [
    (client.Hardware, Hardware),
    (client.TrialStart, service.TrialStart),
    (client.Report, stopping.Report),
    (PowerProfile, service.PowerProfile),
]


@pytest.mark.parametrize(("ours", "theirs"), MESSAGES, ids=lambda model: model.__name__)
def test_a_message_has_the_same_fields_and_types_on_both_sides(ours: type, theirs: type) -> None:
    assert types_of(ours) == types_of(theirs)


def test_a_decision_without_the_services_answer_lacks_the_cost_alone() -> None:
    ours, theirs = types_of(client.Decision), types_of(stopping.Decision)
    assert ours.pop("cost") == {"anyOf": [{"type": "null"}, theirs.pop("cost")]}
    assert ours == theirs


def test_what_the_client_reads_of_a_trial_the_service_sends() -> None:
    sent, read = types_of(service.Trial), types_of(client.TrialStatus)
    assert read == {name: sent[name] for name in read}


def test_a_job_has_the_same_fields_types_and_defaults_on_both_sides() -> None:
    ours, theirs = types_of(client.JobSpec), types_of(spec.JobSpec)
    del ours["suggested"], ours["omitted"]
    assert ours.keys() == theirs.keys() - _SERVICE_ONLY
    assert ours == {name: theirs[name] for name in ours}
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(client.JobSpec)
        if field.default is not dataclasses.MISSING
    }
    fields = spec.JobSpec.model_fields
    assert defaults == {name: fields[name].default for name in defaults}
    required = ours.keys() - defaults.keys()
    assert required == {name for name in fields if fields[name].is_required()}


def test_both_sides_have_the_same_outcomes() -> None:
    assert set(get_args(client.Outcome)) == set(get_args(outcomes.Outcome))
    assert set(get_args(client.Why)) == set(get_args(base.Why))
    ended_by_the_client = get_args(service.TrialEnd.model_fields["outcome"].annotation)
    assert set(get_args(client.Outcome)) - set(ended_by_the_client) == {
        "converged",
        "early_stopped",
        "lost",
    }
    assert set(RESUMABLE) == {None, *outcomes.RESUMABLE}  # None: it is running


def test_both_sides_take_the_same_ids() -> None:
    assert job._JOB_ID.pattern == spec.JOB_ID_PATTERN
    assert IDEMPOTENCY_KEY_PATTERN == "[!-~]{1,255}"  # the client sends a UUID
    assert client.MAX_METRIC == spec.MAX_METRIC
    assert client.MAX_INTEGER == spec.MAX_INTEGER


def job_arguments(**changes: Any) -> JobArguments:
    arguments = dict.fromkeys(field.name for field in dataclasses.fields(JobArguments))
    sent = {"target_metric": 0.9, "monitor": "val_acc", "mode": "max"}
    sent |= {"batch_size_scope": "global"}
    options = {name: changes.pop(name) for name in job._POLICY_OPTIONS if name in changes}
    return JobArguments(**{**arguments, **sent, "policy": options, **changes})


def job_spec(**changes: Any) -> spec.JobSpec:
    given = spec_json(**{"batch_sizes": [32, 64], "default_batch_size": 64, **changes})
    registration = service.Registration.model_validate(given)
    return spec.JobSpec(job_id=registration.job_id, **registration.values())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("job_id", ["a", "a" * 255, "a" * 256, "", "-a", "a b", "a/b"]),
        ("target_metric", [1e30, -1e30, 1.1e30, -1.1e30, float("nan"), float("inf"), "1"]),
        ("monitor", ["val_acc", ""]),
        ("max_epochs", [1, 0, -1, 1.5, True]),
        ("eta_knob", [0, 1, -0.01, 1.01, True, "0.5"]),
        ("beta_knob", [None, 2, 0, -1, True]),
        ("num_pruning_rounds", [0, 100, True]),  # the service alone checks the ranges of these
        ("window_size", [0, 1000, 1.5]),
        ("seed", [0, 2**32 - 1, 1.5]),
        ("batch_sizes", [[32, 64], [64], [*range(1, 129)], [], [0, 64], [64, 1.5]]),
        ("default_batch_size", [64, 0, -1]),
    ],
)
def test_both_sides_accept_the_same_values_of_a_job(name: str, values: list[Any]) -> None:
    def accepted(make: Any, error: type[Exception], value: Any) -> bool:
        try:
            make(**{name: value})
        except error:
            return False
        return True

    ours = [accepted(job_arguments, ZeusConfigError, value) for value in values]
    theirs = [accepted(job_spec, ValidationError, value) for value in values]
    assert ours == theirs
    assert True in ours
    assert False in ours


POINT = {"limit_w": 200, "energy_j": 50.0, "time_s": 0.5}
PROFILE: dict[str, Any] = {
    "device_model": "NVIDIA A40",
    "num_devices": 1,
    "batch_size": 64,
    "points": [POINT, {**POINT, "limit_w": 300}],
    "chosen_w": 200,
    "selector": "zeus-cost",
    "eta_knob": 0.5,
    "max_power_w": 300.0,
    "measured_at": "2026-05-04T12:00:00Z",
}


def test_both_sides_accept_the_same_points_of_a_power_profile() -> None:
    def accepted(parse: Any, error: type[Exception], points: list[Any]) -> bool:
        try:
            parse({**PROFILE, "points": points})
        except error:
            return False
        return True

    values = [PROFILE["points"], [], [{**POINT, "energy_j": 0}], [{"limit_w": 200}]]
    ours = [accepted(PowerProfile.from_json, ZeusConfigError, value) for value in values]
    theirs = [
        accepted(service.PowerProfile.model_validate, ValidationError, value) for value in values
    ]
    assert ours == theirs == [True, False, False, False]
