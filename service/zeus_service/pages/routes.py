"""The pages: jobs, a job, a trial; and the parts and figures of them that change.

A page is complete without a script but for its figures. Its script asks for a part or a figure with
the `ETag` of what it shows, and gets 304 if that has not changed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from apiflask import APIBlueprint
from flask import Response, redirect, request, stream_with_context
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import NotFound

from zeus_service import __version__, maintenance, optimizer
from zeus_service import savings_report as savings
from zeus_service.bandit.spec import MAX_INTEGER
from zeus_service.db import (
    clock,
    job_list,
    logs,
    power_profiles,
    running_trials,
    series,
    trial_list,
)
from zeus_service.db.damage import is_sound
from zeus_service.db.tables import TRIALS
from zeus_service.errors import ExhaustedJob, JobBusy
from zeus_service.pages import arguments, assets, figures, job_figures, plotting, savings_figures
from zeus_service.pages.access import require_writing, set_up_access
from zeus_service.pages.errors import set_up_errors
from zeus_service.pages.plotting import Figure
from zeus_service.pages.sparkline import sparkline
from zeus_service.pages.templating import render
from zeus_service.savings_report import Rates

pages = APIBlueprint("pages", __name__, enable_openapi=False)  # for browsers, not for programs
set_up_errors(pages)
set_up_access(pages)

JOB = "/job/<job_id:job_id>"
DAYS = 90
"""Of the figure of what was saved."""
TRIAL = f"{JOB}/trial/<int(min=1, max={MAX_INTEGER}):trial_number>"


@pages.get("/assets/<version>/<name>")
def asset(version: str, name: str) -> Response:
    """A file that browsers may keep for a year."""
    if not assets.is_current(name, version):
        raise NotFound(f"no file {name} of this version")
    response = Response(mimetype=assets.TYPES[name.rpartition(".")[2]])
    if name != assets.PLOTLY:
        response.data = assets.OWN[name]
    elif request.accept_encodings["gzip"]:
        response.data = assets.compressed_plotly()
        response.content_encoding = "gzip"
    else:
        response.data = assets.plotly()
    response.vary.add("Accept-Encoding")
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    return response


@pages.get("/")
def jobs_page() -> ResponseReturnValue:
    """The jobs."""
    found = job_list.read(arguments.job_query(request.args), now=clock.now())
    return _page(
        "jobs.html",
        found=found,
        states=job_list.JOB_STATES,
        sparkline=sparkline,
        savings=lambda: savings.of_all_jobs(Rates.configured(), days=DAYS),
    )


@pages.get("/figures/saved")
def saved_figure() -> ResponseReturnValue:
    """The figure of what all jobs have saved, as Plotly's JSON."""
    figure = savings_figures.by_day(savings.of_all_jobs(Rates.configured(), days=DAYS))
    response = Response(_json(figure), mimetype="application/json")
    response.add_etag()
    response.make_conditional(request)
    return response


@pages.get(JOB)
def job_page(job_id: str) -> ResponseReturnValue:
    """A job."""
    query = arguments.trial_query(request.args)
    job, now = optimizer.get_job(job_id, count=False), clock.now()
    return _page(
        "job.html",
        job=job,
        spec=job.spec,
        query=query,
        now=now,
        savings=lambda: savings.of_job(job_id, Rates.configured(), points=1),
        price_per_kwh=Rates.configured().price_per_kwh,
        arms={arm.batch_size: arm for arm in job.arms},
        colours=plotting.batch_size_colours(job.spec),
        titles=job_figures.FIGURES,
        filters=(*trial_list.OUTCOMES, trial_list.RUNNING),
        state=lambda: job_list.state_of(job_id, now=now),
        next_choice=lambda: _next_choice(job_id),
        running=lambda: running_trials.read(job_id),
        trials=lambda: trial_list.read(job_id, query),
        events=lambda: logs.events(job_id, arguments.whole(request.args, "events_upto")),
        progress=_progress,
    )


@pages.get(f"{JOB}/delete")
def delete_form(job_id: str) -> ResponseReturnValue:
    """What is asked before a job is deleted."""
    require_writing()
    return render("delete.html", job=optimizer.get_job(job_id), problem="")


@pages.post(f"{JOB}/delete")
def delete(job_id: str) -> ResponseReturnValue:
    """Delete a job whose id was typed in to confirm it."""
    require_writing()
    if request.form.get("confirm", "").strip() != job_id:
        problem = "That is not the id of this job."
        return render("delete.html", job=optimizer.get_job(job_id), problem=problem), 422
    try:
        maintenance.delete_job(job_id, force="force" in request.form)
    except JobBusy as error:
        return render("delete.html", job=optimizer.get_job(job_id), problem=error.message), 409
    return redirect("/", 303)


@pages.get(f"{JOB}/figures/<name>")
def job_figure(job_id: str, name: str) -> ResponseReturnValue:
    """A figure of a job, as Plotly's JSON."""
    if name not in job_figures.FIGURES:
        raise NotFound(f"no figure {name!r} of a job")
    version = (*series.version(job_id), power_profiles.version(job_id))
    return _figure(version, lambda: job_figures.draw(job_id, name))


@pages.get(f"{JOB}/trials.csv")
def trials_csv(job_id: str) -> Response:
    """All trials of a job, as they are read."""
    series.version(job_id)  # 404 for an unknown job
    response = Response(stream_with_context(_csv(job_id)), mimetype="text/csv")
    name = quote(f"{job_id}-trials.csv", safe="")  # headers have Latin-1 only (RFC 6266)
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
    return response


@pages.get(TRIAL)
def trial_page(job_id: str, trial_number: int) -> ResponseReturnValue:
    """A trial."""
    job = optimizer.get_job(job_id, count=False)
    trial = _trial(job_id, trial_number)
    return _page(
        "trial.html",
        job=job,
        spec=job.spec,
        trial=trial,
        is_broken=not is_sound(trial, TRIALS),
        now=clock.now(),
        colours=plotting.batch_size_colours(job.spec),
        running=lambda: [
            row for row in running_trials.read(job_id) if row.trial_number == trial_number
        ],
        reports=lambda: logs.reports(job_id, trial_number, arguments.whole(request.args, "upto")),
        progress=_progress,
    )


@pages.get(f"{TRIAL}/figures/run")
def trial_figure(job_id: str, trial_number: int) -> ResponseReturnValue:
    """The figure of a trial, as Plotly's JSON."""
    trial = _trial(job_id, trial_number)
    version = (*series.version(job_id)[:1], trial.started_at, trial.reports, trial.outcome)

    def draw() -> Figure:
        spec = optimizer.get_job(job_id, count=False).spec
        return figures.run(spec, series.reports(job_id, trial_number))

    return _figure(version, draw)


def _page(template: str, **values: Any) -> Response:
    """A page, or the part of it that the argument `part` names."""
    part = request.args.get("part", "")
    name = f"_{part}.html" if part in PARTS.get(template, ()) else template
    response = Response(render(name, **values), mimetype="text/html")
    response.add_etag()
    response.make_conditional(request)
    return response


PARTS = {
    "jobs.html": ("summary", "list"),
    "job.html": ("standing", "running", "trials", "events"),
    "trial.html": ("trial_standing", "reports"),
}
"""The parts of each page that change while it is open."""


def _figure(version: tuple[object, ...], draw: Callable[[], Figure]) -> Response:
    """A figure, or 304: it is drawn only if the version is another than the one the browser has."""
    response = Response(mimetype="application/json")
    response.set_etag(
        hashlib.sha256(repr((__version__, request.path, version)).encode()).hexdigest()
    )
    if response.make_conditional(request).status_code != 304:
        response.data = _json(draw())
    return response


def _json(figure: Figure) -> str:
    return json.dumps(figure, separators=(",", ":"), allow_nan=False)


def _trial(job_id: str, trial_number: int) -> Any:
    trial = trial_list.get(job_id, trial_number)
    if trial is None:
        raise NotFound(f"Job {job_id} has no run {trial_number}; old runs may have been pruned.")
    return trial


def _next_choice(job_id: str) -> tuple[int | None, str]:
    try:
        choice, reason = optimizer.next_choice(job_id)
    except ExhaustedJob as error:
        return None, error.message
    return choice.batch_size, reason


def _progress(spec: Any, trial: Any) -> float:
    """How far a metric has come from its first value to the target, in [0, 1]."""
    if trial.metric is None:
        return 0.0
    if spec.reached(trial.metric):
        return 1.0
    if trial.first_metric is None or trial.first_metric == spec.target_metric:
        return 0.0
    share = (trial.metric - trial.first_metric) / (spec.target_metric - trial.first_metric)
    return float(min(1.0, max(0.0, share)))


def _csv(job_id: str) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(trial_list.COLUMNS)
    for rows in trial_list.portions(job_id):
        writer.writerows([_literal(value) for value in row] for row in rows)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _literal(value: object) -> object:
    """A value that a spreadsheet shows: it computes a text that looks like a formula."""
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )
