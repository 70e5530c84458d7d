"""Quantities, times, names and savings as people read them, on pages and on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from zeus_service.api.messages import NextTrial, OnHardware
from zeus_service.api.savings_report import JobSavings
from zeus_service.bandit.choice_reasons import status_in_words
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.bandit.spec import Hardware
from zeus_service.units import (
    DURATIONS,
    NONE,
    energy,
    range_with_unit,
    shared_unit,
    significant,
    with_minus,
    with_unit,
)

TIMES = "\N{MULTIPLICATION SIGN}"
BATCH_SIZES = ("batch size", "runs", "expected cost", "95 % interval", "vs best", "state")
"""Of a table of batch sizes; `vs best` compares expected costs."""


def money(value: float, currency: str) -> str:
    """An amount of money: `EUR 1.56`, `EUR 12,345`."""
    shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
    if value and abs(value) < 0.1:
        shown = significant(value)
    return f"{currency} {with_minus(shown)}"


def seconds(value: float | None) -> str:
    """A duration: `1.38 h`."""
    return with_unit(value, DURATIONS)


def number(value: float | None) -> str:
    """A metric with five significant digits."""
    return NONE if value is None else with_minus(f"{value:.5g}")


def hardware_names(hardware: Sequence[Hardware]) -> list[str]:
    """A name for each hardware: number and model, and what else tells it apart from the others."""
    short = [f"{each.num_devices} {TIMES} {each.device_model}" for each in hardware]
    return [
        name if short.count(name) == 1 else f"{name} ({each.max_power_w:g} W, meter {each.meter})"
        for name, each in zip(short, hardware, strict=True)
    ]


def iso(instant: float) -> str:
    """Unix seconds in the form of a `datetime` attribute."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")


def day(instant: float) -> str:
    """Unix seconds as a date: `3 Sep 2026`."""
    at = datetime.fromtimestamp(instant, UTC)
    return f"{at.day} {at:%b %Y}"


def saved_share(saved_j: float, spent_j: float) -> float:
    """What was saved of what the default would have spent; 0 if that is nothing."""
    expected_j = saved_j + spent_j
    return saved_j / expected_j if expected_j > 0 else 0.0


def words(name: str | None) -> str:
    """A name of an outcome as words: `out of memory`."""
    return "running" if name is None else name.replace("_", " ")


def host_load(load: float | None) -> str:
    """The host's load per core over a run: `, host load 2.3`; empty if it is unknown."""
    return "" if load is None else f", host load {load:.1f}"


def savings_summary(found: JobSavings) -> str:
    """What a job has saved compared with its default batch size, in a sentence."""
    saved, default = found.saved, f"the default batch size, {found.default_batch_size}"
    if saved is None:
        return f"savings are unknown until a run with {default}, converges"
    energy_j, time_s = saved.energy_j, saved.time_s
    parts = [
        f"energy {energy(energy_j.estimate)} ({range_with_unit(energy_j.low, energy_j.high)})",
        f"time {seconds(time_s.estimate)} ({range_with_unit(time_s.low, time_s.high, DURATIONS)})",
    ]
    if saved.money is not None:
        parts.append(money(saved.money.estimate, saved.currency))
    if saved.co2e_kg is not None:
        parts.append(f"{significant(saved.co2e_kg.estimate)} kg CO2e")
    text = f"saved compared with {default}: {', '.join(parts)}"
    meters = sorted({each.meter for each in found.hardware if each.estimated})
    return text + (f"; energy is estimated by {', '.join(meters)}" if meters else "")


def _state(arm: ArmEstimate) -> str:
    """Why a batch size is not chosen; it may not have run itself."""
    if arm.status == "out_of_memory" and not arm.pulls:
        return "a smaller one ran out of memory"
    return status_in_words(arm.status)


def batch_size_rows(
    on: OnHardware | None, next_trial: NextTrial | None
) -> list[tuple[int, int, str, str, str, str]]:
    """The batch sizes on some hardware side by side: see `BATCH_SIZES`.

    Args:
        on: The hardware, with the policy's estimates; None before the first trial.
        next_trial: What the next trial gets.
    """
    best, arms = (on.arm(on.best_batch_size), on.arms) if on else (None, [])
    units = shared_unit(arm.mean for arm in arms)
    rows = []
    for arm in arms:
        low_high = NONE if arm.interval is None else range_with_unit(*arm.interval, units)
        against = NONE
        if arm.mean and best and best.mean and arm != best:
            against = with_minus(f"{100 * (arm.mean / best.mean - 1):+,.0f} %")
        states = [
            "best" if arm == best else "",
            "next" if next_trial and arm.batch_size == next_trial.batch_size else "",
            _state(arm) if arm.status != "alive" else "",
        ]
        state = ", ".join(filter(None, states)) or ("" if arm.pulls else "no result")
        expected = energy(arm.mean, units)
        rows.append((arm.batch_size, arm.pulls, expected, low_high, against, state))
    return rows
