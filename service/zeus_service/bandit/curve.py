"""What a job's runs have shown of a curve over its batch sizes: the part of a state for one curve.

**Drift.** The surprises of the runs, deviations of their logarithms from the expectation, are added
up in both directions. When a sum exceeds its threshold, the curve has changed: what was known of it
is forgotten, except the noise. Source: Page, "Continuous inspection schemes", Biometrika 41, 1954.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from zeus_service.bandit.curve_model import Posterior
from zeus_service.bandit.policy import State, reproducible

DRIFT_ALLOWANCE = 0.75
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 5.0
LEAST_PROBABILITY = 3e-5
"""That of a surprise by 4 standard deviations: one alone does not exceed the threshold."""
_LISTS = ("weight", "mean_log", "stopped", "stopped_mean_log")


def new(count: int) -> State:
    """A curve over `count` batch sizes of which nothing is known."""
    return {  # lists have an entry per batch size
        "weight": [0.0] * count,  # number of values
        "mean_log": [0.0] * count,
        "stopped": [0.0] * count,  # number of runs that were stopped before they had their value
        "stopped_mean_log": [0.0] * count,
        "sum_of_squares": 0.0,  # of the deviations from `mean_log`, over all batch sizes
        "degrees_of_freedom": 0.0,
        "cusum": [0.0, 0.0],  # cumulative sums of surprises: [higher, lower]
    }


def is_known(curve: State) -> bool:
    """Whether the curve has any value."""
    return any(curve["weight"])


def over(curve: State, batch_sizes: Sequence[float], more: Sequence[float]) -> State:
    """The same curve over more batch sizes, which include its own."""
    rows = {size: index for index, size in enumerate(batch_sizes)}
    lists = {
        name: [curve[name][rows[size]] if size in rows else 0.0 for size in more] for name in _LISTS
    }
    return {**curve, **lists}


def add(curve: State, index: int, log_value: float) -> None:
    """Add a run's value, in place."""
    weight, mean = curve["weight"][index], curve["mean_log"][index]
    if weight:
        curve["sum_of_squares"] += weight / (weight + 1) * (log_value - mean) ** 2
        curve["degrees_of_freedom"] += 1
    curve["weight"][index] = weight + 1
    curve["mean_log"][index] = mean + (log_value - mean) / (weight + 1)


def add_stopped(curve: State, index: int, log_value: float, share: float) -> None:
    """Add a run that was stopped before it had its value, in place; it counts as `share` runs."""
    if share > 0:
        stopped = curve["stopped"][index] + share
        mean = curve["stopped_mean_log"][index]
        curve["stopped_mean_log"][index] = mean + (log_value - mean) * share / stopped
        curve["stopped"][index] = stopped


def has_drifted(curve: State, posterior: Posterior, index: int, log_value: float) -> bool:
    """Advance the cumulative sums, in place; return whether the curve has changed.

    Args:
        curve: The curve, to which the value has not been added.
        posterior: Its posterior.
        index: The run's batch size.
        log_value: The run's value.
    """
    least = LEAST_PROBABILITY
    probability = min(max(posterior.exceeds(index, log_value), least), 1 - least)
    surprise = reproducible(-NormalDist().inv_cdf(probability))
    higher, lower = curve["cusum"]
    higher = max(0.0, higher + surprise - DRIFT_ALLOWANCE)
    lower = max(0.0, lower - surprise - DRIFT_ALLOWANCE)
    curve["cusum"] = [higher, lower]
    return bool(max(higher, lower) > DRIFT_THRESHOLD)


def forget(curve: State) -> None:
    """Forget the values, in place; keep the noise."""
    for name in _LISTS:
        curve[name] = [0.0] * len(curve[name])
    curve["cusum"] = [0.0, 0.0]
