"""The wire of the Zeus project's own batch size server, for its existing clients.

Its paths lead to the same use cases and the same jobs as those under `/api/v1`. It differs in what
`zeus.optimizer.batch_size.BatchSizeOptimizer` (release 0.16) relies on:

- There are no keys and no sequence numbers: every start is new, and a report is identified by its
  epoch.
- Every rank of a data-parallel run reports for the same trial, with its own figures. The first
  report of an epoch decides; another of that epoch, or of an earlier one, changes nothing and gets
  the same decision, so that either all ranks stop or all go on.
- The cost so far is compared with the early-stop bound, and past it a run has failed even if it has
  reached its target: a job registered here has the `early_stop` of that server, `spent`.
- There are no heartbeats, only a report each epoch: a job registered here has a lease of six hours.
  A longer epoch costs at most a second exploration, since a late report revives its trial; and a
  daily job that was killed does not count as running the next day.
- Bodies have no Content-Type, and a diverged run's metric is `NaN`, which is not JSON. Such a
  metric ends the run as `diverged`.
- The client ends its trial whenever its process exits, without a reason. A trial that is still
  running becomes `interrupted`, which the policy ignores; that server does not learn from it,
  either. If the run is alive after all (forked children also run exit handlers), its next report
  revives the trial.
- A token comes as the password of Basic authentication: that is what its client makes of a URL
  like `http://zeus:TOKEN@host`.
- Errors are `{"message": ...}`.

Browsers have no use for this wire. Since a body needs no Content-Type and a GET starts a trial, any
web page could reach a service on loopback through a browser; requests with a browser's headers are
refused.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar

from apiflask import APIBlueprint
from flask import Response, current_app, g, request
from flask.typing import ResponseReturnValue
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    UnprocessableEntity,
    UnsupportedMediaType,
)

from zeus_service import errors, maintenance, optimizer, registration
from zeus_service.api.access import is_browser, require_access_by_password
from zeus_service.bandit import stopping
from zeus_service.bandit.outcomes import FINAL, Outcome
from zeus_service.bandit.spec import (
    MAX_JOB_ID,
    MAX_METRIC,
    REAL,
    WHOLE,
    Amount,
    AnyJobId,
    Hardware,
    JobSpec,
    Metric,
    Name,
    PositiveAmount,
    PositiveCount,
)
from zeus_service.db import queries, tables

N = TypeVar("N", "ZeusJob", "NamedJob", "NamedTrial", "ZeusReport")

zeus_wire = APIBlueprint("zeus_wire", __name__, enable_openapi=False)


UNSENT = {"monitor": "metric", "policy": "zeus", "early_stop": "spent", "lease_s": 6.0 * 3600}
UNSENT |= {"baseline_runs": 3}
"""What Zeus's client does not send: it may join a job of `/api/v1` that has other values."""


class ZeusJob(JobSpec):
    """A job in the format of Zeus's client."""

    job_id_prefix: Annotated[str, Field(max_length=MAX_JOB_ID)]
    target_metric: Metric = 0.5
    higher_is_better: bool = Field(True, alias="higher_is_better_metric")
    max_epochs: PositiveCount = 100
    max_power: PositiveAmount
    number_of_gpus: PositiveCount
    gpu_model: Name
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), WHOLE] | None = Field(None, alias="mab_seed")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        made = f"{given.get('job_id_prefix')}-{secrets.token_hex(4)}"
        job_id = made if given.get("job_id") is None else given["job_id"]
        return {**given, **UNSENT, "job_id": job_id}

    @field_validator("job_id")
    @classmethod
    def _stands_in_a_path(cls, value: str) -> str:
        if value in (".", ".."):  # clients take it out of the paths of /api/v1, even if escaped
            raise ValueError(f"{value!r} is not allowed in a URL's path; choose another id")
        return value

    @model_validator(mode="after")
    def _starts_with_prefix(self) -> Self:
        if not self.job_id.startswith(self.job_id_prefix):
            raise ValueError(
                f"job_id {self.job_id!r} does not start with job_id_prefix {self.job_id_prefix!r}"
            )
        return self

    def given(self) -> dict[str, Any]:
        """The fields of a `JobSpec` that this client sends."""
        names = JobSpec.model_fields.keys() - UNSENT.keys() - {"job_id", "batch_size_scope"}
        return self.model_dump(include=names)

    def hardware(self) -> Hardware:
        """What all trials of the job use; this client has only one meter."""
        return Hardware(self.gpu_model, self.number_of_gpus, self.max_power, meter="nvml")

    def to_json(self) -> dict[str, Any]:
        """The job in the format of Zeus's client."""
        return self.model_dump(by_alias=True, exclude={*UNSENT, "batch_size_scope"})


class NamedJob(BaseModel):
    """A job by its id."""

    job_id: AnyJobId


class NamedTrial(NamedJob):
    """A trial, with the batch size it was started with."""

    batch_size: PositiveCount
    trial_number: PositiveCount


class ZeusReport(NamedTrial):
    """What a run has measured since its start, and the metric of its latest epoch."""

    time: Amount
    energy: Amount
    metric: Annotated[float, REAL]
    current_epoch: Annotated[int, Field(ge=0, lt=2**31 - 1), WHOLE]


zeus_wire.before_request(require_access_by_password)  # before anything reads the body


@zeus_wire.before_request
def check_request() -> None:
    """Refuse browsers, and bodies with a Content-Type other than JSON's."""
    if is_browser():
        raise Forbidden("these paths are for the Zeus project's client, not for browsers")
    if request.method in ("POST", "PATCH") and request.mimetype not in ("", "application/json"):
        raise UnsupportedMediaType("the body must be application/json")


@zeus_wire.errorhandler(errors.NotFound)
def unknown(error: errors.NotFound) -> ResponseReturnValue:
    """Return the status that Zeus's server returns for unknown jobs and trials."""
    return {"message": error.message}, 404 if request.method in ("PATCH", "DELETE") else 400


@zeus_wire.after_request
def use_zeus_form(response: Response) -> Response:
    """Convert a problem (RFC 9457) to Zeus's form of an error."""
    if response.mimetype == "application/problem+json":
        message = response.get_json()["detail"]
        response.set_data(current_app.json.dumps({"message": message}))
        response.mimetype = "application/json"
    return response


@zeus_wire.post("/jobs")
def register_job() -> ResponseReturnValue:
    """Register a job, or confirm it; the answer fills in the `job_id`."""
    job = _body(ZeusJob)
    _, new = registration.register_job(
        job.job_id, job.given(), suggested=UNSENT, hardware=job.hardware()
    )
    return job.to_json(), 201 if new else 200


@zeus_wire.get("/jobs/batch_size")
def start_trial() -> ResponseReturnValue:
    """Start a trial."""
    if request.method != "GET":  # Flask answers HEAD as well
        raise MethodNotAllowed(["GET"])
    job, trial, _ = optimizer.start_trial(_query().job_id)
    numbers = {"batch_size": trial.batch_size, "trial_number": trial.trial_number}
    return {"job_id": job.job_id, **numbers}, {"Cache-Control": "no-store"}


@zeus_wire.post("/report")
def report() -> ResponseReturnValue:
    """Store what a run has measured, and decide whether it continues."""
    result = _body(ZeusReport)
    trial = _find_trial(result)
    if trial.outcome in FINAL:
        return _finished(result.trial_number, trial.outcome)
    sequence = result.current_epoch + 1
    try:
        if not abs(result.metric) <= MAX_METRIC:
            this, reason = (result.job_id, result.trial_number), f"the metric is {result.metric}"
            ended = optimizer.end_trial(*this, "diverged", reason, before_report=sequence)
            return _answer("diverged", ended.reason)
        decision = optimizer.report(
            result.job_id,
            result.trial_number,
            stopping.Report(
                sequence=sequence,
                epoch=result.current_epoch,
                time_s=result.time,
                energy_j=result.energy,
                metric=result.metric,
            ),
        )
    except errors.TrialFinished as error:
        return _finished(result.trial_number, error.fields["outcome"])
    except errors.ReportConflict:  # another rank has reported this epoch
        trial = _find_trial(result)
        if trial.outcome in FINAL:
            return _finished(result.trial_number, trial.outcome)
        return _answer(None, "this epoch was already reported; keep training")
    return _answer(decision.outcome, _reason_text(result.batch_size, decision))


@zeus_wire.patch("/trials")
def end_trial() -> ResponseReturnValue:
    """End the trial of a process that exits; a trial that has ended keeps its outcome."""
    given = _body(NamedTrial)
    _find_trial(given)
    this = given.job_id, given.trial_number
    with contextlib.suppress(errors.TrialFinished):
        optimizer.end_trial(*this, "interrupted", "its process exited")
    return {"message": f"trial {given.trial_number} has ended"}


@zeus_wire.delete("/jobs")
def delete_job() -> ResponseReturnValue:
    """Delete a job with its trials, even running ones."""
    job_id = _query().job_id
    maintenance.delete_job(job_id, force=True)
    return {"message": f"deleted job {job_id!r}"}


def _find_trial(given: NamedTrial) -> tables.Trial:
    trial = queries.get_trial(given.job_id, given.trial_number)[0]
    if trial.batch_size != given.batch_size:
        raise errors.NotFound(
            f"trial {given.trial_number} of job {given.job_id!r} was started with batch size "
            f"{trial.batch_size}, not {given.batch_size}"
        )
    return trial


def _reason_text(batch_size: int, decision: stopping.Decision) -> str:
    """The reason, with the words of Zeus's server that scripts search it for."""
    if decision.outcome == "early_stopped":
        return f"batch size {batch_size} exceeded the cost upper bound: {decision.reason}"
    if decision.outcome == "not_converged":
        return f"Train failed to converge within max_epoch: {decision.reason}"
    return decision.reason


def _finished(trial_number: int, outcome: Outcome) -> ResponseReturnValue:
    return _answer(outcome, f"the result of trial {trial_number}, {outcome}, was already reported.")


def _answer(outcome: Outcome | None, message: str) -> ResponseReturnValue:
    return {
        "stop_train": outcome is not None,
        "converged": outcome == "converged",
        "message": message,
    }


def _body(model: type[N]) -> N:
    """The request's body, read as JSON whatever its Content-Type is."""
    return _parse(lambda: model.model_validate_json(request.get_data()))


def _query() -> NamedJob:
    return _parse(lambda: NamedJob.model_validate(request.args.to_dict()))


def _parse(read: Callable[[], N]) -> N:
    try:
        named = read()
    except ValidationError as error:
        raise _refusal(error) from None
    g.job_id = named.job_id  # for the log
    return named


def _refusal(error: ValidationError) -> BadRequest | UnprocessableEntity:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    text = "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found)
    malformed = found[0]["type"] == "json_invalid"
    return BadRequest(f"the body is not JSON: {text}") if malformed else UnprocessableEntity(text)
