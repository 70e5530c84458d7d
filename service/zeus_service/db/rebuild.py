"""A job's state and savings, rebuilt from its trials.

They are rebuilt when an end changes: a trial runs again, or a baseline has reached the target that
its job has learned. The command `rebuild` does it on demand.

A baseline is a run with the default batch size that trains to completion; its job learns the target
from some of these. Those that have reached it end there afterwards, as if it had been known:
nothing is measured twice.

What changes a job is called with the job's row locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from zeus_service.bandit import fold, learned_target
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import jobs, savings
from zeus_service.db.session import unix_now
from zeus_service.db.tables import MAX_REASON, Job, Report, Trial
from zeus_service.savings.ledger import Era, record
from zeus_service.savings.power import Profiles

_OWN_TARGET = "pass target_metric with a new job_id"


class Rebuilt:
    """A job's state and savings, as they follow from what `jobs.history` has read."""

    def __init__(self, spec: JobSpec, rows: Sequence[Any], profiles: Profiles) -> None:
        self.rows = rows
        self.ledger: dict[str, Any] = {}
        self.eras: list[Era] = []
        self.era_of: dict[int, int | None] = {}
        self.state, self.inconclusive = fold.replay(spec, rows)
        for trial in rows:
            if trial.outcome is not None:
                self.ledger, self.eras, self.era_of[trial.trial_number] = record(
                    spec, self.ledger, self.eras, trial, profiles
                )

    def store(self, session: Session, job: Job, spec: JobSpec) -> bool:
        """Store it for a locked job; return whether that changed nothing but eras and rounding."""
        same = (self.state, self.inconclusive) == (job.state, job.inconclusive)
        job.state, job.inconclusive = self.state, self.inconclusive
        jobs.summarize(job, spec)
        same &= savings.replace(session, job, self.ledger, self.eras)
        for row in self.rows:
            era = self.era_of.get(row.trial_number)
            if row.era != era:
                this = Trial.job_key == job.key, Trial.trial_number == row.trial_number
                session.execute(update(Trial).where(*this).values(era=era))
        job.updated_at = unix_now()  # pages are rendered again
        return same


def revive(session: Session, job: Job, spec: JobSpec, trial: Trial) -> None:
    """Take back the end of a trial, which has no result, in a locked job: it runs again."""
    rows = jobs.history(session, job)
    others = [row for row in rows if row.trial_number != trial.trial_number]
    savings.take_back(session, job, trial, others)
    trial.outcome = trial.ended_seq = trial.ended_at = None
    trial.reason = ""
    job.sequence += 1
    job.failures = _failures(others)
    job.state, job.inconclusive = fold.revive(spec, job.state, rows, [*others, trial])
    jobs.summarize(job, spec)


def complete_baseline(session: Session, job: Job, spec: JobSpec, trial: Trial) -> None:
    """End a locked job's baseline, whose training has ended by itself; it has reported.

    While the job has no target, the last baseline needed sets it. Once the job has a target, all
    completed baselines that have reached it become trials that converged when they first did.
    """
    jobs.end(session, job, spec, trial, "completed", "")
    session.flush()
    name = f"baseline {job.completed_baselines} of {spec.baseline_runs}"
    if spec.target_metric is not None:
        name = "an extra baseline"
    completed = (Trial.job_key == job.key, Trial.why == "baseline", Trial.outcome == "completed")
    baselines = session.scalars(select(Trial).where(*completed)).all()
    reports = {each.trial_number: _reports(session, spec, each) for each in baselines}
    best_of = max if spec.higher_is_better else min
    best = {number: best_of(row.metric for row in rows) for number, rows in reports.items()}
    own = f"{name}: best {spec.monitor} {best[trial.trial_number]:.6g}"
    trial.reason = own
    are_equal = len(best) > 1 and len(set(best.values())) == 1
    curves = {tuple(row.metric for row in rows) for rows in reports.values()}
    fault = ""
    if spec.target_metric is None and job.completed_baselines >= spec.baseline_runs:
        spec = jobs.set_target(job, learned_target.learn(spec, list(best.values())))
        if are_equal:
            fault = f"; all are equal, so any worse run misses {_target(spec)}: {_OWN_TARGET}"
        elif all(spec.reached(rows[0].metric) for rows in reports.values()):
            fault = f"; {_target(spec)} is too easy, met at each first validation: {_OWN_TARGET}"
    elif spec.target_metric is None and are_equal and len(curves) == 1:
        fault = f", as before, so a target would have no margin: vary the seed, or {_OWN_TARGET}"
    if spec.target_metric is not None:
        for baseline in baselines:
            _judge(spec, baseline, reports[baseline.trial_number])
        if trial.outcome == "completed":
            trial.reason = f"{own}; {_target(spec)}, not reached"[:MAX_REASON]
        _rebuild(session, job, spec)
    if fault:
        trial.reason = f"{own}{fault}"[:MAX_REASON]


def _target(spec: JobSpec) -> str:
    return f"target {'>=' if spec.higher_is_better else '<='} {spec.target_metric:.6g}"


def _reports(session: Session, spec: JobSpec, trial: Trial) -> Sequence[Any]:
    """A baseline's reports, of epochs that later runs have too: at least the first."""
    columns = (Report.epoch, Report.time_s, Report.energy_j, Report.metric, Report.cost)
    query = select(*columns).where(Report.job_key == trial.job_key)
    query = query.where(Report.trial_number == trial.trial_number).order_by(Report.sequence)
    rows = session.execute(query).all()
    return [row for row in rows if row.epoch <= spec.max_epochs] or rows[:1]


def _judge(spec: JobSpec, baseline: Trial, reports: Sequence[Any]) -> None:
    """Let a baseline that has reached the target end there, with what it had measured then."""
    first = next((row for row in reports if spec.reached(row.metric)), None)
    if first is None:
        return
    baseline.outcome = "converged"
    for name in ("epoch", "time_s", "energy_j", "metric", "cost"):
        setattr(baseline, name, getattr(first, name))
    after = f"{first.epoch} epoch{'s' * (first.epoch != 1)}"
    reason = f"{baseline.reason}; {_target(spec)}, which it reached after {after}"
    baseline.reason = reason[:MAX_REASON]


def _rebuild(session: Session, job: Job, spec: JobSpec) -> None:
    """Rebuild what a locked job makes of its trials: the end of one has changed."""
    session.flush()
    rows = jobs.history(session, job)
    job.failures = _failures(rows)
    Rebuilt(spec, rows, savings.default_profiles(session, job, spec)).store(session, job, spec)


def _failures(rows: Sequence[Any]) -> int:
    """Count the latest ends in a row that neither converged nor completed."""
    ends = [row.outcome for row in rows if row.outcome not in (None, "withdrawn")]
    return len(list(takewhile(lambda each: each not in ("converged", "completed"), reversed(ends))))
