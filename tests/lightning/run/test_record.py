"""A trial's record in the outcome file; what is made from it is tested in `test_bso_*`."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import hardware, job_spec, record, report

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import TrialStatus
from zeus_lightning.meters import Reading
from zeus_lightning.run.record import TrialRecord


def status(**changed: Any) -> TrialStatus:
    """The service's status of `SAVED`."""
    values = {"trial_number": 1, "generation": "of-a-test", "batch_size": 8, "outcome": None}
    return TrialStatus(**(values | {"reason": "", "reports": 2} | changed))


SAVED = record(report=report(2), spent=Reading(6.5, 3.25), unsent=[report(3), report(4)])


def test_a_record_survives_its_file_which_is_removed_only_if_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    for one in (record(), SAVED):
        one.write(path)
        assert TrialRecord.read(path) == one
        assert json.loads(path.read_text())["cost_j"] == one.cost_j
    newer = json.loads(path.read_text()) | {"colour": "red"}
    path.write_text(json.dumps(newer | {"spent": newer["spent"] | {"water_l": 1.0}}))
    assert TrialRecord.read(path) == SAVED
    assert list(tmp_path.iterdir()) == [path]
    TrialRecord.remove(path)
    assert not path.exists()
    path.write_text("{")
    TrialRecord.remove(path)
    assert path.exists()  # it is something else


def test_a_device_is_not_replaced_by_a_record(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with pytest.warns(UserWarning, match="it is not a regular file"):
        SAVED.write(link)
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)


ENDED = {"outcome": "converged", "reason": "the target is reached"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"job": job_spec(job_id="other")}, "but this run's job is 'other'"),
        (
            {"hardware": hardware(device_model="bigger")},
            r"which ran on other hardware \(device_model 'test', not 'bigger'\)",
        ),
        ({"status": None}, r"which this service does not have \(a deleted job"),
        (
            {"status": status(generation="later")},
            r"which this service does not have \(a deleted job",
        ),
        ({"status": status(**ENDED)}, r"which ended as converged \(the target is reached\)"),
    ],
)
def test_a_trial_that_cannot_be_resumed_is_an_error_that_says_why(
    changed: dict[str, Any], problem: str
) -> None:
    run = {"job": job_spec(), "hardware": hardware(), "status": status(outcome="lost")}
    SAVED.check_resumable(**run)
    message = f"^the checkpoint belongs to trial 1 of job 'job', {problem}.*; start a new trial"
    with pytest.raises(ZeusConfigError, match=message):
        SAVED.check_resumable(**(run | changed))
    unmeasured = replace(SAVED, spent=Reading(math.nan, 1.0))
    with pytest.raises(ZeusConfigError, match="whose energy could not be measured"):
        unmeasured.check_resumable(**run)


def test_the_figures_of_one_epoch_say_epoch() -> None:
    assert " after 1 epoch, " in record(report=report(1)).measured()
    assert " after 2 epochs, " in record(report=report(2)).measured()


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (3599.0, "3599.0 J"),
        (3600.0, "1.00 Wh"),
        (9.0e6, "2.50 kWh"),
        (4.5e12, "1,250.00 MWh"),
    ],
)
def test_the_figures_have_the_units_of_the_services_reasons(energy_j: float, text: str) -> None:
    assert f", {text}, cost " in record(report=report(1, energy_j=energy_j)).measured()
