"""`/api/v1`: one route per use case."""

from __future__ import annotations

import re
from typing import Annotated, Any

from apiflask import APIBlueprint
from flask import g, request
from flask.json.provider import DefaultJSONProvider
from pydantic import BaseModel, Field
from pydantic_core import from_json
from werkzeug.exceptions import BadRequest, UnprocessableEntity, UnsupportedMediaType
from werkzeug.routing import BaseConverter

from zeus_service import maintenance, optimizer, registration
from zeus_service.api import messages, savings_report
from zeus_service.api.access import require_access
from zeus_service.api.savings_report import WEEKS
from zeus_service.bandit.spec import MAX_INTEGER, MAX_JOB_ID, Name
from zeus_service.bandit.stopping import Decision, Report
from zeus_service.db import power_profiles

v1 = APIBlueprint("v1", __name__, url_prefix="/api/v1", tag="jobs")

JOB_ID_IN_PATH = rf"[^/\x00-\x1f\x7f]{{1,{MAX_JOB_ID}}}"
IDEMPOTENCY_KEY_PATTERN = "[!-~]{1,255}"

JOB = "/jobs/<job_id:job_id>"
TRIAL = f"{JOB}/trials/<int(min=1, max={MAX_INTEGER}):trial_number>"
POWER_PROFILES = f"{JOB}/power-profiles"
POWER_PROFILE = f"{POWER_PROFILES}/<int(min=1, max={MAX_INTEGER}):batch_size>"

_NEW: dict[str, Any] = {"status_code": 201, "description": "New."}


class JobIdConverter(BaseConverter):
    """A job id in a path, of either wire; ids with a slash cannot stand there."""

    regex = JOB_ID_IN_PATH


class StrictJSON(DefaultJSONProvider):
    """Standard JSON: no NaN, no infinity, and no nesting that exhausts the stack."""

    def loads(self, s: str | bytes, **_kwargs: Any) -> Any:
        """Parse a request's body; raise `BadRequest` if it is not a JSON object."""
        try:
            value = from_json(s, allow_inf_nan=False)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object")
        return value


class JobPage(BaseModel):
    """A page of the list of jobs."""

    after: Annotated[str, Field(max_length=MAX_JOB_ID, pattern=r"^[^\x00]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class TrialPage(BaseModel):
    """A page of a job's trials."""

    after: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class Span(BaseModel):
    """How many weeks, the current one included."""

    weeks: Annotated[int, Field(ge=1, le=53)] = WEEKS


class OnGpus(BaseModel):
    """The GPUs of power profiles. Default: every model, and every number."""

    device_model: Name | None = None
    num_devices: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None


class OfGeneration(BaseModel):
    """The trial's generation, as its start returned it."""

    generation: Annotated[str, Field(min_length=1, max_length=32)]


class Deletion(BaseModel):
    """Whether to delete a job with running trials."""

    force: bool = False


v1.before_request(require_access)


@v1.before_request
def require_json() -> None:
    """Refuse other bodies: any web page could post a form to a service on loopback."""
    if request.method in ("POST", "PUT", "PATCH") and request.mimetype != "application/json":
        raise UnsupportedMediaType(
            "the body must be JSON; send the header Content-Type: application/json"
        )


@v1.post("/jobs")
@v1.input(messages.Registration)
@v1.output(messages.Job, **_NEW)
@v1.doc(responses={200: "Already registered with these values."})
def register_job(json_data: messages.Registration) -> tuple[messages.Job, int]:
    """Register a job, or confirm it; the answer has all its values."""
    g.job_id = json_data.job_id  # for the log
    _, new = registration.register_job(
        json_data.job_id, json_data.values(), suggested=json_data.suggested.values()
    )
    described = optimizer.describe_job(json_data.job_id)
    return messages.Job.with_estimates(*described), 201 if new else 200


@v1.get("/jobs")
@v1.input(JobPage, location="query")
@v1.output(messages.JobList)
def list_jobs(query_data: JobPage) -> messages.JobList:
    """List jobs, ordered by id."""
    found = optimizer.list_jobs(after=query_data.after, limit=query_data.limit)
    return messages.JobList(jobs=[messages.JobSummary.of(job, state) for job, state in found])


@v1.get(JOB)
@v1.output(messages.Job)
def get_job(job_id: str) -> messages.Job:
    """Show a job and the policy's estimates of its batch sizes."""
    return messages.Job.with_estimates(*optimizer.describe_job(job_id))


@v1.delete(JOB)
@v1.input(Deletion, location="query")
@v1.output({}, status_code=204)
def delete_job(job_id: str, query_data: Deletion) -> tuple[str, int]:
    """Delete a job with its trials, reports and power profiles."""
    maintenance.delete_job(job_id, force=query_data.force)
    return "", 204


@v1.post(f"{JOB}/trials")
@v1.input(messages.NewTrial)
@v1.output(messages.TrialStart, **_NEW)
@v1.doc(responses={200: "This Idempotency-Key already started this trial."})
def start_trial(job_id: str, json_data: messages.NewTrial) -> tuple[messages.TrialStart, int]:
    """Start a trial; the header `Idempotency-Key` makes repeating it harmless."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not re.fullmatch(IDEMPOTENCY_KEY_PATTERN, key):
        raise UnprocessableEntity("Idempotency-Key must be 1 to 255 printable ASCII characters")
    job, trial, new = optimizer.start_trial(job_id, key, **vars(json_data))
    return messages.TrialStart.of(job, trial), 201 if new else 200


@v1.get(f"{JOB}/trials")
@v1.input(TrialPage, location="query")
@v1.output(messages.TrialList)
def list_trials(job_id: str, query_data: TrialPage) -> messages.TrialList:
    """List a job's trials, ordered by number."""
    found = optimizer.list_trials(job_id, after=query_data.after, limit=query_data.limit)
    return messages.TrialList(trials=[messages.Trial.of(job_id, trial) for trial in found])


@v1.post(f"{TRIAL}/reports")
@v1.input(Report)
@v1.input(OfGeneration, location="query")
@v1.output(Decision)
def report(job_id: str, trial_number: int, json_data: Report, query_data: OfGeneration) -> Decision:
    """Report what a run has measured; the answer says whether the run continues."""
    return optimizer.report(job_id, trial_number, json_data, generation=query_data.generation)


@v1.post(f"{TRIAL}/heartbeat")
@v1.input(messages.Empty)
@v1.input(OfGeneration, location="query")
@v1.output(messages.Lease)
def heartbeat(
    job_id: str, trial_number: int, query_data: OfGeneration, **_body: messages.Empty
) -> messages.Lease:
    """Extend a running trial's lease."""
    lease_s = optimizer.heartbeat(job_id, trial_number, generation=query_data.generation)
    return messages.Lease(lease_s=lease_s)


@v1.patch(TRIAL)
@v1.input(messages.TrialEnd)
@v1.input(OfGeneration, location="query")
@v1.output(messages.Trial)
def end_trial(
    job_id: str, trial_number: int, json_data: messages.TrialEnd, query_data: OfGeneration
) -> messages.Trial:
    """End a trial with the outcome that its run reports."""
    outcome, reason, generation = json_data.outcome, json_data.reason, query_data.generation
    trial = optimizer.end_trial(job_id, trial_number, outcome, reason, generation=generation)
    return messages.Trial.of(job_id, trial)


@v1.put(POWER_PROFILE)
@v1.input(messages.PowerProfile)
@v1.output(messages.PowerProfile, **_NEW)
@v1.doc(responses={200: "Replaced an earlier profile."})
def put_power_profile(
    job_id: str, batch_size: int, json_data: messages.PowerProfile
) -> tuple[messages.PowerProfile, int]:
    """Store what was measured for a batch size on some GPUs."""
    if json_data.batch_size != batch_size:
        raise UnprocessableEntity(
            f"batch_size is {json_data.batch_size} in the body but {batch_size} in the path"
        )
    new = power_profiles.put(job_id, json_data.model_dump(mode="json"))
    return json_data, 201 if new else 200


@v1.get(POWER_PROFILES)
@v1.input(OnGpus, location="query")
@v1.output(messages.PowerProfileList)
def list_power_profiles(job_id: str, query_data: OnGpus) -> messages.PowerProfileList:
    """List a job's power profiles, ordered by batch size."""
    found = power_profiles.list_profiles(job_id, **vars(query_data))
    return messages.PowerProfileList.model_validate({"profiles": found})


@v1.get(f"{JOB}/savings")
@v1.output(savings_report.JobSavings)
def job_savings(job_id: str) -> savings_report.JobSavings:
    """Show what a job has saved compared with its default batch size."""
    return savings_report.job_savings(job_id)


@v1.get("/savings")
@v1.input(Span, location="query")
@v1.output(savings_report.Savings)
def all_savings(query_data: Span) -> savings_report.Savings:
    """Show what all jobs have saved together, and in each week."""
    return savings_report.all_savings(weeks=query_data.weeks)
