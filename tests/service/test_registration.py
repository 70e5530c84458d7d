"""Sparse registrations, and jobs that are registered again: changed, or after they were deleted."""

import itertools
from dataclasses import replace
from threading import Thread
from typing import Any, get_args

import pytest
from databases import waiting_sessions
from flask import Flask
from service.conftest import application, on_sqlite
from service.db.races import just_before, on_servers
from service.db.test_power_profiles import profile
from service.jobs import HARDWARE, register
from sqlalchemy import delete, update
from waiting import wait_until
from zeus_service import maintenance, optimizer, registration
from zeus_service.bandit.outcomes import NO_RESULT, Result
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import Hardware
from zeus_service.bandit.stopping import Report
from zeus_service.db import jobs, power_profiles, queries
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, Trial
from zeus_service.errors import InvalidJob, JobConflict, OtherGeneration


def start() -> Trial:
    return optimizer.start_trial("job")[1]


def stored() -> list[dict[str, Any]]:
    """The job and its trials, as the database has them."""
    rows = [optimizer.get_job("job"), *optimizer.list_trials("job")]
    return [{name: value for name, value in vars(row).items() if name[0] != "_"} for row in rows]


def end_all(outcome: Any) -> None:
    """Running trials end like this; `lost` by an expired lease that nobody has noticed."""
    if outcome == "lost":
        with transaction() as session:
            session.execute(update(Trial).values(lease_expires_at=0))
        return
    for trial in optimizer.list_trials("job"):
        optimizer.end_trial("job", trial.trial_number, outcome)


REQUIRED = {"batch_sizes": [8, 16], "default_batch_size": 8, "target_metric": 0.9}
REQUIRED |= {"monitor": "val_acc", "higher_is_better": True, "max_epochs": 10}


def register_sparse(given: dict[str, Any], **suggested: Any) -> dict[str, Any]:
    """Register a job; return its specification."""
    job, _ = registration.register_job("job", given, suggested=suggested)
    return job.spec


@on_sqlite
def test_a_field_without_a_value_takes_the_registered_one_the_suggestion_or_the_default(
    app: Flask,
) -> None:
    first = register_sparse(REQUIRED, max_epochs=99, eta_knob=0.3)
    assert first.items() >= {**REQUIRED, "eta_knob": 0.3, "beta_knob": 2.0}.items()
    assert register_sparse({}, default_batch_size=16, eta_knob=0.4) == first
    assert register_sparse({"eta_knob": 0.3}, batch_sizes=[1]) == first


@on_sqlite
def test_a_null_is_not_a_value_except_for_the_beta_knob(app: Flask) -> None:
    nulls: dict[str, Any] = {"seed": None, "eta_knob": None, "policy": None, "beta_knob": None}
    nulls["suggested"] = {"eta_knob": 0.25, "lease_s": None}
    answer = app.test_client().post("/api/v1/jobs", json={"job_id": "job", **REQUIRED, **nulls})
    spec = answer.get_json()["spec"]
    assert (spec["eta_knob"], spec["lease_s"], spec["beta_knob"]) == (0.25, 900.0, None)


@on_servers
def test_the_first_of_two_registrations_wins(app: Flask, database_url: str) -> None:
    def register_there() -> None:
        with application(database_url):
            register_sparse(REQUIRED, eta_knob=0.1)

    with just_before("INTO jobs", register_there):
        assert register_sparse(REQUIRED, eta_knob=0.2)["eta_knob"] == 0.1


REPORT = Report(sequence=1, epoch=1, time_s=1.0, energy_j=1.0, metric=1.0)
OTHER = replace(HARDWARE, meter="rapl (estimate)", estimated=True)


def hardware_of(job: Job) -> list[Hardware]:
    return list(map(Hardware.of, job.hardware))


@on_sqlite
def test_a_job_takes_any_hardware_that_of_the_latest_start_last(app: Flask) -> None:
    register_sparse(REQUIRED)
    for hardware in (HARDWARE, OTHER, HARDWARE):
        job, trial, _ = optimizer.start_trial("job", hardware=hardware)
        assert trial.hardware == hardware
    assert hardware_of(job) == [OTHER, HARDWARE]
    assert job.estimated
    assert maintenance.rebuild("job")


@on_sqlite
@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_is_revived_on_hardware_that_its_job_has_left_since(
    app: Flask, policy: str
) -> None:
    register_sparse({**REQUIRED, "policy": policy})
    optimizer.start_trial("job", hardware=HARDWARE)
    optimizer.end_trial("job", 1, "interrupted")
    optimizer.start_trial("job", hardware=OTHER)
    optimizer.report("job", 2, REPORT.model_copy(update={"energy_j": 50.0}))
    assert (
        optimizer.report("job", 1, REPORT.model_copy(update={"metric": 0.1})).decision == "continue"
    )
    assert maintenance.rebuild("job")
    optimizer.report("job", 1, REPORT.model_copy(update={"sequence": 2, "epoch": 2}))
    job = optimizer.get_job("job")
    assert hardware_of(job) == [HARDWARE, OTHER]
    bounds = [each["cost_bound"] for each in job.hardware]
    assert bounds == [None, None] if policy == "default" else bounds[0] != bounds[1]
    assert maintenance.rebuild("job")


@on_sqlite
def test_a_job_that_is_registered_again_keeps_what_was_not_given(app: Flask) -> None:
    register_sparse(REQUIRED)
    optimizer.start_trial("job", hardware=HARDWARE)
    optimizer.end_trial("job", 1, "errored")
    suggested = {"batch_sizes": [64, 128], "default_batch_size": 64}
    changed = register_sparse({"max_epochs": 20}, **suggested)
    assert changed.items() >= {**REQUIRED, "max_epochs": 20}.items()
    optimizer.start_trial("job", hardware=HARDWARE)
    optimizer.end_trial("job", 2, "errored")
    changed = register_sparse({"batch_sizes": [64, 128]}, **suggested)
    assert changed.items() >= {**REQUIRED, "max_epochs": 20, **suggested}.items()


@on_sqlite
def test_a_job_that_is_registered_with_its_hardware_keeps_it(app: Flask) -> None:
    register()
    for other in (OTHER, replace(HARDWARE, num_devices=2)):
        for refused in (
            lambda other=other: registration.register_job("job", {}, suggested={}, hardware=other),
            lambda other=other: optimizer.start_trial("job", hardware=other),
        ):
            with pytest.raises(JobConflict, match="one kind of hardware per job"):
                refused()
    assert hardware_of(optimizer.get_job("job")) == [HARDWARE]
    assert optimizer.start_trial("job", hardware=HARDWARE)[2]


@on_sqlite
def test_a_job_that_has_used_other_hardware_cannot_be_registered_for_one(app: Flask) -> None:
    register_sparse(REQUIRED)
    optimizer.start_trial("job", hardware=OTHER)
    with pytest.raises(JobConflict, match="one kind of hardware per job"):
        registration.register_job("job", {}, suggested={}, hardware=HARDWARE)
    optimizer.start_trial("job", hardware=HARDWARE)


@on_sqlite
@pytest.mark.parametrize("suggested", [{}, {"higher_is_better": False}])
def test_another_metric_does_not_keep_the_mode_of_the_first(
    app: Flask, suggested: dict[str, bool]
) -> None:
    register_sparse(REQUIRED)

    def replaced(given: dict[str, Any]) -> Any:
        return registration.register_job("job", given, suggested=suggested, replace_unused=True)[
            0
        ].spec["higher_is_better"]

    assert replaced({"max_epochs": 20}) is True
    if suggested:
        assert replaced({"monitor": "elbo"}) is False
    else:
        with pytest.raises(InvalidJob, match="higher_is_better: Field required"):
            replaced({"monitor": "elbo"})


@on_sqlite
def test_a_start_without_hardware_needs_a_registered_one(app: Flask) -> None:
    register_sparse(REQUIRED)
    optimizer.start_trial("job", hardware=HARDWARE)
    with pytest.raises(JobConflict, match="without hardware"):
        optimizer.start_trial("job")
    registration.register_job("job", {}, suggested={}, hardware=HARDWARE)
    assert optimizer.start_trial("job")[1].hardware == HARDWARE


@on_sqlite
@pytest.mark.parametrize(
    ("policy", "outcome"),
    [*zip(itertools.cycle(POLICIES), sorted(NO_RESULT - {"completed"}), strict=False)],
)
def test_a_job_whose_runs_taught_nothing_is_registered_anew(
    app: Flask, policy: str, outcome: str
) -> None:
    register(monitor="val_ac", policy=policy)
    for _ in range(4):  # after three such ends, the job passes over the batch size
        start()
    power_profiles.put("job", profile())
    end_all(outcome)
    changes = {"monitor": "val_acc", "batch_sizes": [7], "default_batch_size": 7}
    job, new = register(**changes, policy=policy)
    assert new
    assert (job.spec["monitor"], job.hardware[0]["cost_bound"]) == ("val_acc", None)
    assert optimizer.list_trials("job") == []
    assert register(**changes)[1] is False
    assert (start().trial_number, start().batch_size) == (5, 7)  # numbers are not used again
    assert len(power_profiles.list_profiles("job")) == 1
    assert maintenance.rebuild("job")


@on_sqlite
@pytest.mark.parametrize("outcome", [None, "no run", *get_args(Result)])
def test_a_job_that_has_learned_or_is_about_to_is_not(app: Flask, outcome: str | None) -> None:
    register()
    if outcome != "no run":
        start()
        end_all("interrupted")
        start()
    if outcome in get_args(Result):
        end_all(outcome)
    before = stored()
    with pytest.raises(JobConflict):
        register(monitor="loss")
    assert stored() == before


@on_servers
def test_a_run_that_converges_before_the_lock_is_not_thrown_away(
    app: Flask, database_url: str
) -> None:
    def converge() -> None:
        with application(database_url):
            optimizer.report("job", 1, REPORT)

    register()
    start()
    end_all("errored")
    with just_before(" UPDATE", converge), pytest.raises(JobConflict):
        register(monitor="loss")
    assert queries.get_trial("job", 1)[0].outcome == "converged"


@on_servers
def test_a_start_that_waits_for_a_registration_starts_a_trial_of_the_new_job(
    app: Flask, database_url: str
) -> None:
    sizes: list[int] = []

    def start_there() -> None:
        with application(database_url):
            sizes.append(start().batch_size)

    def let_it_wait() -> None:
        other.start()
        wait_until(lambda: waiting_sessions() == 1)

    register()
    start()
    end_all("withdrawn")
    other = Thread(target=start_there)
    with just_before("INTO jobs", let_it_wait):
        register(batch_sizes=[7], default_batch_size=7)
    other.join()
    assert sizes == [7]


def delete_and_register() -> None:
    maintenance.delete_job("job", force=True)
    register()


def restore_the_backup() -> None:
    """Of a time when the job had no trial."""
    job = optimizer.get_job("job")
    state = POLICIES["zeus"].initial_state(jobs.specification(job))
    with transaction() as session:
        session.execute(delete(Trial))
        session.execute(update(Job).values(trials=0, sequence=0, state=state))


@on_sqlite
@pytest.mark.parametrize("forget", [delete_and_register, restore_the_backup])
def test_a_run_from_before_changes_nothing_of_a_new_trial(app: Flask, forget: Any) -> None:
    register(policy="zeus")
    old = start()
    forget()
    new = start()
    assert (new.trial_number, new.batch_size) == (old.trial_number, old.batch_size)
    before = stored()
    client = app.test_client()
    path = f"/api/v1/jobs/job/trials/1{{}}?generation={old.generation}"
    for answer in (
        client.post(path.format("/reports"), json=REPORT.model_dump()),
        client.post(path.format("/heartbeat"), json={}),
        client.patch(path.format(""), json={"outcome": "out_of_memory"}),
    ):
        assert (answer.status_code, answer.get_json()["code"]) == (409, "other_generation")
        assert "the job was deleted, or the database restored" in answer.get_json()["detail"]
    assert stored() == before
    assert optimizer.report("job", 1, REPORT, generation=new.generation).outcome == "converged"


@on_servers
@pytest.mark.parametrize("metric", [0.1, 1.0])
def test_a_report_is_never_stored_on_a_trial_that_took_its_place(
    app: Flask, database_url: str, metric: float
) -> None:
    def take_its_place() -> None:
        with application(database_url):  # another server: in this one it would wait its turn
            delete_and_register()
            start()

    register()
    old = start()
    given = REPORT.model_copy(update={"metric": metric})
    with (
        just_before(" UPDATE", take_its_place),  # FOR UPDATE, FOR NO KEY UPDATE
        pytest.raises(OtherGeneration),
    ):
        optimizer.report("job", 1, given, generation=old.generation)
    assert queries.get_trial("job", 1)[0].reports == 0
    assert queries.get_trial("job", 1)[0].outcome is None
