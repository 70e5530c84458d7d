"""The first page, which lists the jobs, and the page of what they have saved."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from flask import Response, request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from zeus_service.api import savings_report
from zeus_service.bandit.spec import MAX_INTEGER, MAX_JOB_ID
from zeus_service.db import queries
from zeus_service.pages import answers, pages
from zeus_service.savings.report import Estimate

TOP = 10
"""Jobs on the page of savings: those that have saved most."""
YEAR = 53
"""Weeks in the file of savings."""
QUANTITIES = ("energy_kwh", "time_s", "gpu_time_s", "money", "co2e_kg")
"""What the file of savings has of each week, where it is known."""


@pages.get("/")
def jobs_page() -> ResponseReturnValue:
    """The jobs."""
    query = job_query(request.args)

    def values() -> dict[str, Any]:
        found = queries.list_jobs(query)
        return {
            "found": found,
            "query": found.query,
            "states": queries.JOB_STATES,
            "needs_attention": queries.NEEDS_ATTENTION,
            "savings": savings_report.all_savings(weeks=0),
        }

    return answers.page("jobs.html", queries.list_version(), values)


@pages.get("/savings")
def savings_page() -> ResponseReturnValue:
    """What all jobs have saved, by week, and the jobs that have saved most."""

    def values() -> dict[str, Any]:
        found = savings_report.all_savings()
        amounts = [week.saved for week in found.weeks]
        return {
            "savings": found,
            "energy": bars([each.energy_j for each in amounts]),
            "time": bars([each.time_s for each in amounts]),
            "money": bars([each.money for each in amounts if each.money]),
            "top": savings_report.largest_savers(TOP),
        }

    return answers.page("savings.html", queries.list_version(), values)


@pages.get("/savings.csv")
def savings_csv() -> Response:
    """What all jobs have saved in each week of a year, with 95 % intervals."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    ends = ("estimate", "low", "high")
    columns = [f"{name}_{end}" for name in QUANTITIES for end in ends]
    writer.writerow(["week", "recurrences", *columns, "currency"])
    for week in savings_report.all_savings(weeks=YEAR).weeks:
        amounts = [getattr(week.saved, name) for name in QUANTITIES]
        values = [getattr(amount, end, "") for amount in amounts for end in ends]
        writer.writerow([week.week, week.recurrences, *values, week.saved.currency])
    response = Response(buffer.getvalue(), mimetype="text/csv")
    response.headers["Content-Disposition"] = "attachment; filename=savings.csv"
    return response


def bars(values: Sequence[Estimate]) -> list[dict[str, float]]:
    """Where zero, each estimate and its interval are, in per cent of the width that fits all."""
    ends = [0.0, *(value.low for value in values), *(value.high for value in values)]
    lowest, span = min(ends), max(ends) - min(ends) or 1.0
    return [
        {name: 100 * (at - lowest) / span for name, at in {"zero": 0.0, **vars(value)}.items()}
        for value in values
    ]


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
        page=positive_int(given, "page") or 1,
    )


def positive_int(given: MultiDict[str, str], name: str) -> int | None:
    """A positive number that every database takes, or None."""
    number = given.get(name, 0, type=int)
    return min(number, MAX_INTEGER) if number > 0 else None
