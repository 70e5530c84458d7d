"""Both sides of the wire mean the same."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from pydantic import BaseModel
from zeus_service import messages as service
from zeus_service.history import Outcome
from zeus_service.spec import MAX_METRIC, JobSpec

from zeus_lightning import messages as client

_SERVICE_ONLY = {"early_stop", "mab_prior_mean", "mab_prior_precision", "mab_num_explorations"}


def defaults(cls: type) -> dict[str, object]:
    """The default of each field that has one."""
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (client.TrialStart, service.TrialStart),
        (client.Report, service.Report),
        (client.Decision, service.Decision),
    ],
)
def test_a_message_has_the_same_fields_on_both_sides(ours: type, theirs: type[BaseModel]) -> None:
    assert {field.name for field in dataclasses.fields(ours)} == set(theirs.model_fields)


def test_all_that_is_read_of_a_trial_is_told() -> None:
    read = {field.name for field in dataclasses.fields(client.TrialStatus)}
    assert read <= set(service.Trial.model_fields)


def test_a_job_has_the_same_fields_and_defaults_on_both_sides() -> None:
    names = {field.name for field in dataclasses.fields(client.JobSpec)}
    assert names == set(JobSpec.model_fields) - _SERVICE_ONLY
    for name, default in defaults(client.JobSpec).items():
        assert JobSpec.model_fields[name].default == default


def test_both_sides_know_the_same_outcomes() -> None:
    assert set(get_args(client.Outcome)) == set(get_args(Outcome))


def test_both_sides_bound_a_metric_alike() -> None:
    assert client.MAX_METRIC == MAX_METRIC
