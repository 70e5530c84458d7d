"""What tries and recurrences cost: lines, a table, and what the job has saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import mean
from typing import Any

from rich import box
from rich.table import Table

from zeus_lightning.messages import FAILED
from zeus_lightning.recur.ending import Try

HEADER = (
    f"{'try':>5}   {'batch size, why':<17} {'outcome':<13} {'epochs':>6} {'s':>8} {'J':>11} "
    f"{'cost (J)':>11}"
)
"""Above the lines of the tries; like them, it fits into 80 columns."""


def line(each: Try) -> str:
    """What a try was, and how it ended, in the columns of `HEADER`."""
    run, number = each.run, f"{each.recurrence:>4}.{each.attempt:<2}"
    if each.outcome == "no trial":
        return f"{number} no trial; the script must use ZeusBSOCallback or Recurrence"
    size, why = ("", "") if run is None else (run.trial.batch_size, run.trial.why)
    outcome = each.outcome
    if each.has_converged and each.exit_code:  # the program went on after its fit, and failed
        outcome = "killed" if each.exit_code < 0 else f"status {each.exit_code}"
    text = f"{number} {size:>6} {why:<10} {outcome:<13}"
    if run is not None and run.report is not None and run.cost_j is not None:
        about = "~" if run.hardware.estimated else ""
        energy_j, cost_j = (f"{about}{_short(each)}" for each in (run.report.energy_j, run.cost_j))
        text += f" {run.report.epoch:>6} {_short(run.report.time_s):>8} {energy_j:>11} {cost_j:>11}"
    return text.rstrip()


def detail(each: Try) -> str:
    """Why a batch size failed, or which metric a run reached; empty if neither is known."""
    run = each.run
    if run is None:
        return ""
    if run.outcome in FAILED or run.trial.why == "baseline":
        return run.reason
    if run.outcome == "converged" and run.report is not None:
        sign = ">=" if run.job.higher_is_better else "<="
        target = f"target {sign} {run.job.target_metric:.6g}"
        return f"reached {run.job.monitor} {run.report.metric:.6g} ({target})"
    return ""


def _short(value: float) -> str:
    """A number in few digits: tenths if it is small."""
    # adding zero makes -0.0 positive
    return f"{round(value, 1) + 0.0:.1f}" if abs(value) < 1e5 else f"{value:.0f}"


def table(tries: Sequence[Try]) -> Table | None:
    """Means over the recurrences, each with all its tries; None if no try was measured.

    Baselines, controls and chosen recurrences are apart. It fits into 80 columns.
    """
    groups: dict[str, list[list[Try]]] = {"baseline": [], "control": [], "chosen": []}
    for _, each in groupby(tries, key=lambda each: each.recurrence):
        recurrence = list(each)
        last = recurrence[-1]
        is_baseline = last.run is not None and last.run.trial.why == "baseline"
        kind = "baseline" if is_baseline else "control" if last.control else "chosen"
        groups[kind].append(recurrence)
    unmeasured = sum(not _measured([each]) for each in tries)
    if unmeasured == len(tries):
        return None
    names = ("", "succeeded", "tries", "J", "s", "cost (J)")
    title = "J, s and cost: mean per recurrence, including all its tries"
    shown = Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    for name, recurrences in groups.items():
        if recurrences:
            succeeded = sum(
                each[-1].has_converged and each[-1].exit_code == 0 for each in recurrences
            )
            totals = [
                [sum(column) for column in zip(*_measured(each), strict=True)] or [0.0] * 3
                for each in recurrences
            ]
            shown.add_row(
                name,
                f"{succeeded} of {len(recurrences)}",
                str(sum(map(len, recurrences))),
                *(_short(mean(column)) for column in zip(*totals, strict=True)),
            )
    notes = ["cost: a weighted sum of energy and time"]
    if groups["baseline"] and groups["chosen"]:
        notes.append("baselines train to completion, other runs only to the target")
    if any(each.run is not None and each.run.hardware.estimated for each in tries):
        notes.append("joules are estimates")
    if unmeasured:
        notes.append(f"tries without a report (counted as 0 J and 0 s): {unmeasured}")
    shown.caption = "; ".join(notes)
    return shown


def _measured(tries: Sequence[Try]) -> list[tuple[float, float, float]]:
    """Joules, seconds and cost of the tries that have reported."""
    runs = [each.run for each in tries]
    return [
        (run.report.energy_j, run.report.time_s, run.cost_j)
        for run in runs
        if run is not None and run.report is not None and run.cost_j is not None
    ]


def saved(job_id: str, savings: dict[str, Any], tries: Sequence[Try]) -> Iterator[str]:
    """Lines that say what a job has saved so far, from the service's answer after these tries."""
    amounts = savings.get("saved")
    if amounts is None:
        last = next((each.run for each in reversed(tries) if each.run), None)
        event = "a run with the default batch size converges"
        # the baseline that sets the target has converged
        if last and last.job.target_metric is None and last.outcome != "converged":
            event = "the baselines have set the target"
        yield f"Job {job_id!r}: savings are unknown until {event}."
        return
    yield f"Savings of job {job_id!r} so far, compared with its default batch size:"
    if any(each.run and each.run.trial.why == "baseline" for each in tries):
        yield "  Unlike in the table, baselines count only until they reach the target."
    used_more = False
    for name, field, unit in (("energy", "energy_j", "J"), ("time", "time_s", "s")):
        estimate, low, high = (_short(amounts[field][key]) for key in ("estimate", "low", "high"))
        is_unclear = float(low) <= 0 <= float(high)
        used_more |= float(high) < 0
        unclear = ", not clearly different from 0 so far"
        interval = f" (95 % interval {low} to {high} {unit})"
        yield f"  {name} saved: {estimate} {unit}{unclear if is_unclear else interval}"
    if used_more:
        yield "  Negative: the job used more. Trying sizes costs something; judge after more runs."
