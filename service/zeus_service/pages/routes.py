"""The pages: jobs, a job, a trial; and the parts and figures of them that change.

A page is complete without a script but for its figures. Its script asks for a part or a figure with
the `ETag` of what it shows. The tag is of a version that is cheap to read: if it is still the same,
the answer is 304, and nothing is read or rendered.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from apiflask import APIBlueprint
from flask import Response, g, redirect, request, send_file, stream_with_context
from flask import render_template as render
from flask.blueprints import BlueprintSetupState
from flask.typing import ResponseReturnValue
from jinja2 import StrictUndefined
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import NotFound

from zeus_service import __version__, maintenance, optimizer
from zeus_service.api import messages, savings_report
from zeus_service.api.savings_report import Rates
from zeus_service.bandit.spec import MAX_INTEGER, MAX_JOB_ID, JobSpec
from zeus_service.db import queries
from zeus_service.errors import ExhaustedJob, JobBusy
from zeus_service.pages import figures, plotting
from zeus_service.pages.errors import set_up_errors
from zeus_service.pages.format import FILTERS
from zeus_service.pages.plotting import Figure
from zeus_service.pages.session import require_writing, set_up_session

pages = APIBlueprint(
    "pages",
    __name__,
    enable_openapi=False,  # for browsers, not for programs
    static_folder="static",
    static_url_path="/assets",
    template_folder="templates",
)
set_up_errors(pages)
set_up_session(pages)


def _set_up_templates(state: BlueprintSetupState) -> None:
    environment = state.app.jinja_env  # all of the application's templates are the pages'
    environment.undefined = StrictUndefined
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= FILTERS
    environment.globals["version"] = __version__


pages.record_once(_set_up_templates)

JOB = "/job/<job_id:job_id>"
TRIAL = f"{JOB}/trial/<int(min=1, max={MAX_INTEGER}):trial_number>"
DAYS = 90
"""Days in the figure of what all jobs have saved."""
PARTS = {
    "jobs.html": ("summary", "list"),
    "job.html": ("standing", "running", "trials"),
    "trial.html": ("trial_standing", "reports"),
}
"""The parts of each page that change while it is open."""


@pages.get("/assets/plotly.js")
def plotly() -> Response:
    """Plotly's JavaScript, from its package: pages work without a network."""
    return send_file(plotting.PLOTLY)


@pages.get("/")
def jobs_page() -> ResponseReturnValue:
    """The jobs."""
    query = job_query(request.args)

    def values() -> dict[str, Any]:
        return {
            "found": queries.list_jobs(query),
            "states": queries.JOB_STATES,
            "savings": lambda: savings_report.of_all_jobs(Rates.configured(), days=DAYS),
        }

    return _page("jobs.html", (query, *queries.list_version()), values)


@pages.get("/figures/saved")
def saved_figure() -> ResponseReturnValue:
    """The figure of what all jobs have saved, as Plotly's JSON."""

    def draw() -> Figure:
        return figures.saved_by_all(savings_report.of_all_jobs(Rates(), days=DAYS))

    return _figure(queries.list_version(), draw)


@pages.get(JOB)
def job_page(job_id: str) -> ResponseReturnValue:
    """A job."""
    query = trial_query(request.args)
    state = queries.job_state(job_id)
    version = state, *queries.job_version(job_id), *queries.running_version(job_id)

    def values() -> dict[str, Any]:
        job = messages.Job.with_estimates(optimizer.get_job(job_id), {})
        return {
            "job": job,
            "spec": job.spec,
            "query": query,
            "state": state,
            "savings": lambda: savings_report.of_job(job_id, Rates.configured(), points=0),
            "price_per_kwh": Rates.configured().price_per_kwh,
            "arms": {arm.batch_size: arm for arm in job.arms},
            "colours": plotting.batch_size_colours(job.spec),
            "titles": figures.FIGURES,
            "filters": (*queries.OUTCOMES, queries.RUNNING),
            "next_choice": lambda: _next_choice(job_id),
            "running": lambda: queries.running_trials(job_id),
            "trials": lambda: queries.list_trials(job_id, query),
            "controls": lambda: queries.count_controls(job_id),
            "progress": _progress,
        }

    return _page("job.html", version, values)


@pages.get(f"{JOB}/delete")
def delete_form(job_id: str) -> ResponseReturnValue:
    """What is asked before a job is deleted."""
    require_writing()
    return _delete_form(job_id)


@pages.post(f"{JOB}/delete")
def delete(job_id: str) -> ResponseReturnValue:
    """Delete a job whose id was typed in to confirm it."""
    require_writing()
    if request.form.get("confirm", "").strip() != job_id:
        return _delete_form(job_id, "That is not the id of this job."), 422
    try:
        maintenance.delete_job(job_id, force="force" in request.form)
    except JobBusy as error:
        return _delete_form(job_id, error.message), 409
    return redirect("/", 303)


def _delete_form(job_id: str, problem: str = "") -> str:
    running = len(queries.running_version(job_id))
    job = optimizer.get_job(job_id)
    return render("delete.html", job=job, running=running, problem=problem)


@pages.get(f"{JOB}/figures/<name>")
def job_figure(job_id: str, name: str) -> ResponseReturnValue:
    """A figure of a job, as Plotly's JSON."""
    if name not in figures.FIGURES:
        raise NotFound(f"no figure {name!r} of a job")
    return _figure(queries.job_version(job_id), lambda: figures.draw(job_id, name))


@pages.get(f"{JOB}/trials.csv")
def trials_csv(job_id: str) -> Response:
    """All trials of a job, as they are read."""
    queries.job_version(job_id)  # 404 for an unknown job
    response = Response(stream_with_context(_csv(job_id)), mimetype="text/csv")
    name = quote(f"{job_id}-trials.csv", safe="")  # headers have Latin-1 only (RFC 6266)
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
    return response


@pages.get(TRIAL)
def trial_page(job_id: str, trial_number: int) -> ResponseReturnValue:
    """A trial."""
    version = _trial_version(job_id, trial_number)
    upto = whole(request.args, "upto")

    def values() -> dict[str, Any]:
        job = messages.Job.with_estimates(optimizer.get_job(job_id), {})
        return {
            "job": job,
            "spec": job.spec,
            "trial": queries.get_trial(job_id, trial_number),
            "colours": plotting.batch_size_colours(job.spec),
            "reports": lambda: queries.list_reports(job_id, trial_number, upto),
            "progress": _progress,
        }

    return _page("trial.html", version, values)


@pages.get(f"{TRIAL}/figures/run")
def trial_figure(job_id: str, trial_number: int) -> ResponseReturnValue:
    """The figure of a trial, as Plotly's JSON."""
    version = _trial_version(job_id, trial_number)
    return _figure(version, lambda: figures.draw_run(job_id, trial_number))


def _page(
    template: str, version: tuple[object, ...], values: Callable[[], dict[str, Any]]
) -> Response:
    """A page, or the part of it that the argument `part` names; 304 if it has not changed."""
    part = request.args.get("part", "")
    name = f"_{part}.html" if part in PARTS[template] else template
    shown = name, request.host, g.viewer, Rates.configured(), version
    return _unless_unchanged(shown, "text/html", lambda: render(name, **values()))


def _figure(version: tuple[object, ...], draw: Callable[[], Figure]) -> Response:
    """A figure as JSON; 304 if it has not changed."""
    return _unless_unchanged(
        version,
        "application/json",
        lambda: json.dumps(draw(), separators=(",", ":"), allow_nan=False),
    )


def _unless_unchanged(
    version: tuple[object, ...], mimetype: str, make: Callable[[], str]
) -> Response:
    """What `make` returns; it is not called if the browser has this version."""
    response = Response(mimetype=mimetype)
    tagged = repr((__version__, request.full_path, version))
    response.set_etag(hashlib.sha256(tagged.encode(errors="replace")).hexdigest())
    if response.make_conditional(request).status_code != 304:
        response.data = make()
    return response


def _trial_version(job_id: str, trial_number: int) -> tuple[object, ...]:
    version = queries.trial_version(job_id, trial_number)
    if version is None:
        raise NotFound(f"Job {job_id} has no run {trial_number}.")
    return version


def _next_choice(job_id: str) -> tuple[int | None, str]:
    try:
        choice, reason = optimizer.next_choice(job_id)
    except ExhaustedJob as error:
        return None, error.message
    return choice.batch_size, reason


def _progress(spec: JobSpec, trial: Any) -> float:
    """How far a metric has come from its first value to the target, in [0, 1]."""
    if trial.metric is None:
        return 0.0
    if spec.reached(trial.metric):
        return 1.0
    if trial.first_metric is None or trial.first_metric == spec.target_metric:
        return 0.0
    share = (trial.metric - trial.first_metric) / (spec.target_metric - trial.first_metric)
    return float(min(1.0, max(0.0, share)))


# --- arguments of addresses: one that makes no sense is its default ------------------------------


def job_query(given: MultiDict[str, str]) -> queries.JobQuery:
    """Which jobs to list."""
    state = given.get("state")
    sort = given.get("sort", "")
    return queries.JobQuery(
        search=given.get("q", "")[:MAX_JOB_ID].replace("\0", "").strip(),
        state=next((known for known in queries.JOB_STATES if known == state), None),
        sort=sort if sort in queries.SORTS else queries.JobQuery.sort,
        descending=given.get("order", "asc" if sort == "job" else "desc") != "asc",
        page=whole(given, "page") or 1,
    )


def trial_query(given: MultiDict[str, str]) -> queries.TrialQuery:
    """Which trials to list."""
    outcome = given.get("outcome")
    return queries.TrialQuery(
        outcome=outcome if outcome in (*queries.OUTCOMES, queries.RUNNING) else None,
        batch_size=whole(given, "batch_size"),
        upto=whole(given, "upto"),
    )


def whole(given: MultiDict[str, str], name: str) -> int | None:
    """A positive number that every database takes, or None."""
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_INTEGER))):
        return None
    return min(int(text), MAX_INTEGER) or None


# --- the file of trials --------------------------------------------------------------------------


def _csv(job_id: str) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(queries.TRIAL_COLUMNS)
    for rows in queries.all_trials(job_id):
        writer.writerows([_literal(value) for value in row] for row in rows)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _literal(value: object) -> object:
    """A value that a spreadsheet shows: it computes a text that looks like a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


_FORMULA = re.compile(r"[=+\-@\t\r\n]")
"""How a text begins that a spreadsheet computes, or from which it cuts what is before `=`."""
