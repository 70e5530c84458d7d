"""Arguments of the pages' addresses: one that makes no sense is its default."""

from __future__ import annotations

from werkzeug.datastructures import MultiDict

from zeus_service.bandit.spec import MAX_INTEGER, MAX_JOB_ID
from zeus_service.db.job_list import JOB_STATES, SORTS, JobQuery
from zeus_service.db.trial_list import OUTCOMES, RUNNING, TrialQuery

Arguments = MultiDict[str, str]


def job_query(given: Arguments) -> JobQuery:
    """Which jobs to list."""
    state = given.get("state")
    sort = given.get("sort", "")
    return JobQuery(
        search=given.get("q", "")[:MAX_JOB_ID].replace("\0", "").strip(),
        state=next((known for known in JOB_STATES if known == state), None),
        sort=sort if sort in SORTS else JobQuery.sort,
        descending=given.get("order", "asc" if sort == "job" else "desc") != "asc",
        page=whole(given, "page") or 1,
    )


def trial_query(given: Arguments) -> TrialQuery:
    """Which trials to list."""
    outcome = given.get("outcome")
    return TrialQuery(
        outcome=outcome if outcome in (*OUTCOMES, RUNNING) else None,
        batch_size=whole(given, "batch_size"),
        upto=whole(given, "upto"),
    )


def whole(given: Arguments, name: str) -> int | None:
    """A positive number that every database takes, or None."""
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_INTEGER))):
        return None
    return min(int(text), MAX_INTEGER) or None
