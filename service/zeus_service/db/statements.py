"""Statements of starts, reports and ends, built once: building one takes longer than executing it.

A bound parameter means the same in all of them. None has the name of a column: SQLAlchemy would
use its value as that column's new value.

    this_job, this_trial          the job's id and the trial's number
    this_key                      the idempotency key of a start
    this_sequence                 the sequence number of a report
    read_reports, read_outcome, read_generation    the trial's values as they were read
    TABLE_COLUMN                  the new value of a column; see `writes.parameters`
    trials_COLUMN                 of a report, too, if its row and the trial's get the same value
"""

from sqlalchemy import and_, bindparam, select, update

from zeus_service.db import leases, savings, standing
from zeus_service.db.tables import EVENTS, JOBS, REPORTS, SAVED_ON_DAYS, TRIALS
from zeus_service.db.writes import Addition, Writes, parameters
from zeus_service.messages import Trial

_THIS_TRIAL = and_(
    TRIALS.c.job_id == bindparam("this_job"), TRIALS.c.trial_number == bindparam("this_trial")
)
_START_WITH_KEY = TRIALS.alias("start_with_key")
_MEASURED = ("energy_j", "metric", "cost", "power_limit_w", "default_power_limit_w")
_REPORT = ("reports", "epoch", "time_s", *_MEASURED, "lease_expires_at")
_END = ("outcome", "reason", "ended_at")
_ADVANCED = (
    *("state", "cost_bound", "trials", "events", "updated_at", "ledger"),
    *savings.COLUMNS,
    *standing.COLUMNS,
)

# --- reads ---------------------------------------------------------------------------------------

JOB = select(JOBS).where(JOBS.c.job_id == bindparam("this_job"))
TRIAL = select(TRIALS).where(_THIS_TRIAL)
TRIAL_WITH_JOB = (
    select(*TRIALS.c[tuple(Trial.model_fields)], JOBS.c.spec, JOBS.c.cost_bound)
    .join(JOBS, JOBS.c.job_id == TRIALS.c.job_id)
    .where(_THIS_TRIAL)
)
REPORT = select(REPORTS).where(
    REPORTS.c.job_id == bindparam("this_job"),
    REPORTS.c.trial_number == bindparam("this_trial"),
    REPORTS.c.sequence == bindparam("this_sequence"),
)

# --- locks: the columns of other tables than the locked one may be older than its own ------------

LOCKED_JOB = JOB.with_for_update(key_share=True, of=JOBS)
LOCKED_JOB_TO_START = LOCKED_JOB.add_columns(
    _START_WITH_KEY.c.job_id.label("key_job_id"),
    _START_WITH_KEY.c.trial_number.label("key_trial_number"),
    leases.EXPIRED.exists().label("any_expired"),
).outerjoin_from(JOBS, _START_WITH_KEY, _START_WITH_KEY.c.idempotency_key == bindparam("this_key"))
LOCKED_TRIAL = TRIAL.with_for_update()

# --- writes --------------------------------------------------------------------------------------

_REPORTED_TRIAL = (
    update(TRIALS)
    .where(
        _THIS_TRIAL,
        TRIALS.c.reports == bindparam("read_reports"),
        TRIALS.c.outcome.is_not_distinct_from(bindparam("read_outcome")),
        TRIALS.c.generation == bindparam("read_generation"),
    )
    .values(parameters(TRIALS, *_REPORT, *_END))
)
_ENDED_TRIAL = update(TRIALS).where(_THIS_TRIAL).values(parameters(TRIALS, *_END))
_ADVANCED_JOB = (
    update(JOBS).where(JOBS.c.job_id == bindparam("this_job")).values(parameters(JOBS, *_ADVANCED))
)
_ERRORS = tuple(column.name for column in SAVED_ON_DAYS.c if column.name.endswith("_error"))
_SAVED = Addition(SAVED_ON_DAYS, replaced=_ERRORS)

REPORT_TO_TRIAL = Writes(_REPORTED_TRIAL, REPORTS)
REPORT_TO_JOB = Writes(_REPORTED_TRIAL, REPORTS, EVENTS, _ADVANCED_JOB, _SAVED)
START = Writes(TRIALS, EVENTS, _ADVANCED_JOB)
START_AFTER_LOSS = Writes(TRIALS, EVENTS, _ADVANCED_JOB, _SAVED)
END = Writes(_ENDED_TRIAL, EVENTS, _ADVANCED_JOB, _SAVED)
