"""What tries and recurrences cost: lines, tables, the difference from the controls, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich import box
from rich.table import Table

from zeus_lightning.recur.ending import Ending
from zeus_lightning.recur.progress import Progress, Try

MEASURES = {"cost": "cost_j", "energy": "energy_j", "time": "time_s"}
_UNITS = {"cost": "J", "energy": "J", "time": "s"}
CONFIDENCE = 0.95

HEADER = (
    f"{'try':>5}   {'batch size, why':<17} {'outcome':<13} {'epochs':>6} {'s':>8} {'J':>11} "
    f"{'cost (J)':>11}"
)
"""Above the lines of the tries; like them, it fits into 80 columns."""


@dataclass(frozen=True, kw_only=True)
class RecurrenceTotals:
    """What a recurrence took, summed over all its tries; each counts its script's last trial.

    Args:
        control: Whether its trials are control trials: the default batch size, never stopped early.
        baseline: Whether its last trial is one from which the target is learned.
        converged: Whether its last try reached the target, or as a baseline its own end.
        estimated: Whether the joules are estimates.
        unmeasured: How many tries ended before their first report; they count 0 J and 0 s.
    """

    number: int
    control: bool
    baseline: bool
    tries: int
    converged: bool
    cost_j: float
    energy_j: float
    time_s: float
    estimated: bool
    unmeasured: int = 0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A measure of the chosen recurrences, compared with the control recurrences before them.

    Args:
        measure: `cost`, `energy` or `time`.
        pairs: How many pairs of recurrences there are.
        control: Mean over the control recurrences, in joules or seconds.
        chosen: Mean over the chosen ones.
        low: Lower end of the 95 % confidence interval of `chosen - control`; None for one pair.
        high: Upper end.
    """

    measure: str
    pairs: int
    control: float
    chosen: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        unit = _UNITS[self.measure]
        text = (
            f"{self.measure}: {self.chosen:.1f} {unit} a recurrence, control {self.control:.1f} "
            f"{unit}: {self._in_words(self.chosen - self.control)}"
        )
        if self.low is None or self.high is None:
            return f"{text} (one pair: no interval)"
        return (
            f"{text} (95 % interval {self._in_words(self.low)} to {self._in_words(self.high)}; "
            f"{self.pairs} pairs)"
        )

    def _in_words(self, difference: float) -> str:
        if not self.control:
            return "-"
        percent = 100 * difference / self.control
        return f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'}"


def rows(progress: Progress) -> list[dict[str, Any]]:
    """The tries that have ended, as flat values, in the order of their recurrences."""
    ended = sorted(progress.endings.items(), key=lambda item: (item[0].recurrence, item[0].attempt))
    return [
        {
            "recurrence": each.recurrence,
            "try": each.attempt,
            "control": each.control,
            "seed": each.seed,
            "job_id": run and run.trial.job_id,
            "trial": run and run.trial.trial_number,
            "batch_size": run and run.trial.batch_size,
            "why": run and run.trial.why,
            "outcome": ending.outcome,
            "result": ending.result,
            "epochs": report and report.epoch,
            "time_s": report and report.time_s,
            "energy_j": report and report.energy_j,
            "cost_j": run and run.cost_j,
            "metric": report and report.metric,
            "estimated": run and run.estimated,
            "exit_code": ending.exit_code,
            "reason": run and run.reason,
        }
        for each, ending in ended
        for run in [ending.run]
        for report in [run and run.report]
    ]


def recurrences(tries: Sequence[dict[str, Any]]) -> list[RecurrenceTotals]:
    """Sum the rows of `rows` over each recurrence."""
    numbers = sorted({row["recurrence"] for row in tries})
    return [_recurrence([row for row in tries if row["recurrence"] == n]) for n in numbers]


def _recurrence(tries: Sequence[dict[str, Any]]) -> RecurrenceTotals:
    last = tries[-1]
    return RecurrenceTotals(
        number=last["recurrence"],
        control=last["control"],
        baseline=last["why"] == "baseline",
        tries=len(tries),
        converged=last["outcome"] in ("converged", "completed"),
        estimated=any(row["estimated"] for row in tries),
        unmeasured=sum(row["energy_j"] is None for row in tries),
        **{name: sum(row[name] or 0.0 for row in tries) for name in MEASURES.values()},
    )


def differences(found: Iterable[RecurrenceTotals]) -> list[Difference]:
    """Compare chosen recurrences with controls, in pairs: what drifts affects both of a pair.

    A pair counts if both converged. Baselines do not: they train on beyond the target. The interval
    comes from a paired t-test.
    """
    converged = {each.number: each for each in found if each.converged and not each.baseline}
    pairs = [
        (each, converged[number + 1])
        for number, each in converged.items()
        if each.control and number + 1 in converged and not converged[number + 1].control
    ]
    return [_difference(measure, pairs) for measure in MEASURES] if pairs else []


def _difference(
    measure: str, pairs: Sequence[tuple[RecurrenceTotals, RecurrenceTotals]]
) -> Difference:
    field = MEASURES[measure]
    control = [getattr(one, field) for one, _ in pairs]
    chosen = [getattr(other, field) for _, other in pairs]
    low, high = _interval([one - other for one, other in zip(chosen, control, strict=True)])
    return Difference(
        measure=measure,
        pairs=len(pairs),
        control=mean(control),
        chosen=mean(chosen),
        low=low,
        high=high,
    )


def _interval(distances: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    if len(distances) == 1:
        return None, None
    if len(set(distances)) == 1:
        return distances[0], distances[0]
    from scipy.stats import ttest_1samp  # takes a second to import

    interval = ttest_1samp(distances, 0.0).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)


def table(found: Sequence[RecurrenceTotals]) -> Table:
    """Sums and means of baselines, controls and chosen recurrences; it fits into 80 columns."""
    names = ("", "converged", "tries", "J", "s", "cost (J)", "cost in all (J)")
    title = "A recurrence, with all its tries, took"
    shown = Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    groups = {
        "baseline": [each for each in found if each.baseline],
        "control": [each for each in found if each.control and not each.baseline],
        "chosen": [each for each in found if not each.control and not each.baseline],
    }
    for name, group in groups.items():
        if group:
            shown.add_row(
                name,
                f"{sum(each.converged for each in group)} of {len(group)}",
                str(sum(each.tries for each in group)),
                _short(mean(each.energy_j for each in group)),
                _short(mean(each.time_s for each in group)),
                _short(mean(each.cost_j for each in group)),
                _short(sum(each.cost_j for each in group)),
            )
    unmeasured = sum(each.unmeasured for each in found)
    notes = ["a try counts the last trial of its script"]
    notes += ["joules are estimates"] * any(each.estimated for each in found)
    notes += [f"tries without a report, of 0 J and 0 s: {unmeasured}"] * bool(unmeasured)
    shown.caption = "; ".join(notes)
    return shown


def line(each: Try, ending: Ending) -> str:
    """What a try was, and how it ended, in the columns of `HEADER`."""
    run, number = ending.run, f"{each.recurrence:>4}.{each.attempt:<2}"
    if ending.outcome == "no trial":
        return f"{number} no trial: no outcome file; does it use ZeusBSOCallback or Recurrence?"
    size, why = ("", "") if run is None else (run.trial.batch_size, run.trial.why)
    text = f"{number} {size:>6} {why:<10} {ending.outcome:<13}"
    if run is not None and run.report is not None and run.cost_j is not None:
        about = "~" if run.estimated else ""
        energy_j, cost_j = (f"{about}{_short(each)}" for each in (run.report.energy_j, run.cost_j))
        text += f" {run.report.epoch:>6} {_short(run.report.time_s):>8} {energy_j:>11} {cost_j:>11}"
    return text.rstrip()


def _short(value: float) -> str:
    """A number in few digits: tenths if it is small."""
    return f"{value:.1f}" if value < 1e5 else f"{value:.0f}"


def comparison(found: Sequence[RecurrenceTotals]) -> Iterator[str]:
    """Lines that say how the chosen recurrences differ from the controls."""
    yield from map(str, differences(found))
    later = found[len(found) // 4 * 2 :]
    if len(later) >= 4:
        yield f"Of the later half alone, from recurrence {later[0].number} on:"
        yield from map(str, differences(later))


def write_json(tries: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the tries, the recurrences, and the differences from the controls."""
    found = recurrences(tries)
    value = {
        "tries": list(tries),
        "recurrences": [asdict(each) for each in found],
        "differences": [asdict(each) for each in differences(found)],
    }
    path.write_text(json.dumps(value, indent=2) + "\n")
