"""The pages of a job and of a trial, and their figures; `overview` has the pages of all jobs.

A page is complete without a script but for its figures. Its script asks for the page again with the
`ETag` of what it shows, and for all its figures at once when the page has changed; runs that a
reader compares are a request of their own. The tag is of a version that is cheap to read: if it is
still the same, the answer is 304, and nothing is read or rendered.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from flask import Response, redirect, request, stream_with_context
from flask import render_template as render
from flask.blueprints import BlueprintSetupState
from flask.typing import ResponseReturnValue
from jinja2 import StrictUndefined

from zeus_service import __version__, maintenance, optimizer
from zeus_service.api import messages, savings_report, text
from zeus_service.bandit import choice_reasons
from zeus_service.bandit.spec import MAX_INTEGER, Hardware
from zeus_service.config import current_config
from zeus_service.db import queries
from zeus_service.db.tables import Trial
from zeus_service.errors import JobBusy
from zeus_service.pages import answers, figures, pages, plot, run_filter
from zeus_service.pages.overview import positive_int
from zeus_service.pages.session import require_writing
from zeus_service.savings.report import J_PER_KWH
from zeus_service.units import energy, range_with_unit, runs, shared_unit, significant

__all__ = ["pages"]


def price(trial: Trial) -> str:
    """What a run's energy and GPU time cost in money; empty if no price is set."""
    gpu_time_s = trial.time_s * trial.hardware.num_devices
    value = savings_report.price(trial.energy_j / J_PER_KWH, gpu_time_s)
    return "" if value is None else text.money(value, current_config().currency)


def priced() -> str:
    """What amounts of money are for, by the prices that are set."""
    prices = {
        "energy": current_config().price_per_kwh,
        "GPU time": current_config().price_per_gpu_hour,
    }
    return " and ".join(name for name, price in prices.items() if price is not None)


@pages.record_once
def _set_up_templates(state: BlueprintSetupState) -> None:
    environment = state.app.jinja_env  # all of the application's templates are the pages'
    environment.undefined = StrictUndefined
    environment.trim_blocks = environment.lstrip_blocks = True
    for shown in (runs, energy, shared_unit, text.seconds, significant,
                  text.number, text.iso, text.day, text.money,
                  text.saved_share, text.words, text.host_load, price):  # fmt: skip
        environment.filters[shown.__name__] = shown
    environment.globals["version"] = __version__
    environment.globals["priced"] = priced
    environment.globals["range_with_unit"] = range_with_unit
    environment.globals["baselines"] = choice_reasons.baselines
    environment.globals["batch_size_rows"] = text.batch_size_rows
    environment.globals["BATCH_SIZES"] = text.BATCH_SIZES
    environment.globals["REMEDY"] = choice_reasons.REMEDY
    environment.globals["count_failures"] = choice_reasons.count_failures


JOB = "/job/<job_id:job_id>"
TRIAL = f"{JOB}/trial/<int(min=1, max={MAX_INTEGER}):trial_number>"
PORTION = 1000
"""Trials that are read at once for a file."""
CSV_COLUMNS = (
    *("trial_number", "batch_size", "why", "start_reason", "start_cost_bound", "outcome"),
    *("reason", "started_at", "ended_at", "reports", "epoch", "time_s", "energy_j", "metric"),
    *("cost", "device_model", "num_devices", "max_power_w", "meter", "estimated"),
)


@pages.get(JOB)
def job_page(job_id: str) -> ResponseReturnValue:
    """A job."""

    def values() -> dict[str, Any]:
        typed, upto = request.args.get("q", "")[:PORTION], positive_int(request.args, "upto")
        filtered, unknown = run_filter.parse(typed)
        savings = savings_report.job_savings(job_id)
        running = queries.running_trials(job_id)
        shown = _job_values(job_id)
        return {
            **shown,
            "query": {name: value for name, value in (("q", typed), ("upto", upto)) if value},
            "unknown_words": unknown,
            "compared": [each.trial_number for each in queries.get_trials(job_id, _compared())],
            "filter_example": run_filter.EXAMPLE,
            "savings": savings,
            "saved_on": {Hardware.of(vars(each)): each for each in savings.hardware},
            "running": running,
            "curves": {
                trial.trial_number: figures.metric_curve(
                    shown["spec"], queries.latest_reports(job_id, trial.trial_number)
                )
                for trial, _ in running
            },
            "trials": queries.list_trials(job_id, **filtered, upto=upto),
            "controls": queries.count_controls(job_id),
        }

    version = queries.job_version(job_id), queries.running_version(job_id)
    return answers.page("job.html", version, values)


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
    except JobBusy:
        return _delete_form(job_id, "The job has runs in flight; tick the box to delete it."), 409
    return redirect("/", 303)


def _delete_form(job_id: str, problem: str = "") -> str:
    job, running = optimizer.get_job(job_id), queries.running_trials(job_id)
    return render("delete.html", job=job, running=running, problem=problem)


@pages.get(f"{JOB}/figures")
def job_figures(job_id: str) -> ResponseReturnValue:
    """The figures of a job, as Plotly's JSON."""
    return answers.figures(queries.job_version(job_id), lambda: figures.draw_job(job_id))


@pages.get(f"{JOB}/figures/compare")
def compared_figure(job_id: str) -> ResponseReturnValue:
    """The figure of one run, or of several that are compared, as Plotly's JSON."""
    compared = queries.get_trials(job_id, _compared())
    reports = [(trial.trial_number, trial.reports) for trial in compared]
    version = queries.job_version(job_id), *reports
    return answers.figures(version, lambda: {"compare": figures.draw_compared(job_id, compared)})


def _compared() -> list[int]:
    """The numbers of the runs to compare."""
    return [each for each in request.args.getlist("run", type=int) if 0 < each <= MAX_INTEGER]


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
    trial, has_lease = queries.get_trial(job_id, trial_number)

    def values() -> dict[str, Any]:
        upto = positive_int(request.args, "upto")
        return {
            **_job_values(job_id),
            "query": {} if upto is None else {"upto": upto},
            "trial": trial,
            "has_lease": has_lease,
            "reports": queries.list_reports(job_id, trial_number, upto),
        }

    version = queries.job_version(job_id), trial.reports, trial.lease_expires_at, has_lease
    return answers.page("trial.html", version, values)


def _job_values(job_id: str) -> dict[str, Any]:
    """What the templates of a job and of its trials show of the job."""
    stored, state, next_choice = optimizer.describe_job(job_id)
    job = messages.Job.with_estimates(stored, state, next_choice)
    hardware = [Hardware.of(vars(on)) for on in job.hardware]
    return {
        "job": job,
        "spec": job.spec,
        "failures": stored.failures,
        "spent_energy_j": stored.spent_energy_j,
        "on_hardware": dict(zip(hardware, job.hardware, strict=True)),
        "names": dict(zip(hardware, text.hardware_names(job.hardware), strict=True)),
        "colours": plot.batch_size_colours(job.spec),
    }


# --- the file of trials --------------------------------------------------------------------------


def _csv(job_id: str) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(CSV_COLUMNS)
    after = 0
    while trials := optimizer.list_trials(job_id, after=after, limit=PORTION):
        for trial in trials:
            values = {**vars(trial), **asdict(trial.hardware)}
            writer.writerow([_literal(values[name]) for name in CSV_COLUMNS])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        after = trials[-1].trial_number
    yield buffer.getvalue()


def _literal(value: object) -> object:
    """A value that a spreadsheet shows: it computes a text that looks like a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


_FORMULA = re.compile(r"[=+\-@\t\r\n]")
"""How a text begins that a spreadsheet computes, or from which it cuts what is before `=`."""
