"""The posterior of what a run costs: the epochs to the target times the cost of an epoch.

The epochs depend on the batch size alone; they are integers, and noisy. The cost of an epoch
depends on the batch size and the hardware; it hardly varies, and a run that has
trained for one epoch has shown it. Each is a curve of its own, see `curve_model`, and the two are
independent.

What a run shows of the epochs is evidence for all hardware. What other hardware has shown of the
cost of an epoch is evidence for the shape of the curve, not for its height.

A state keeps what runs have shown of each curve. **Drift.** The surprises of the runs, deviations
of their logarithms from the expectation, are added up in both directions. When a sum exceeds its
threshold, the curve has changed: what was known of it is forgotten, except the noise. Source: Page,
"Continuous inspection schemes", Biometrika 41, 1954.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit.curve_model import Floats, Posterior, Prior, infer
from zeus_service.bandit.policy import State, reproducible
from zeus_service.bandit.spec import JobSpec, devices_for_each

EPOCHS = Prior(
    slopes=(0.03, 0.2, 0.8, 1.5),
    noises=(0.01, 0.03, 0.08, 0.2, 0.4),
    knee_residuals=((0.03, 0.02), (0.12, 0.06)),
)
EPOCH_COST = Prior(
    slopes=(-0.2, -0.45, -0.7),
    noises=(0.01, 0.05),
    knee_residuals=((0.03, 0.02), (0.2, 0.15)),
)

OUTLIER_RATIO = 1.9
"""A lone value is left out only if it is at least so many times the geometric mean of every other
batch size."""
OUTLIER_PROBABILITY = 0.01
"""A lone value is left out only if the other runs give a larger one a probability below this."""

DRIFT_ALLOWANCE = 0.75
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 5.0
LEAST_PROBABILITY = 3e-5
"""That of a surprise by 4 standard deviations: one alone does not exceed the threshold."""
_LISTS = ("weight", "mean_log", "stopped", "stopped_mean_log")


def new_curve(count: int) -> State:
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


def with_more_sizes(curve: State, batch_sizes: Sequence[float], more: Sequence[float]) -> State:
    """The same curve over more batch sizes, which include its own."""
    rows = {size: index for index, size in enumerate(batch_sizes)}
    lists = {
        name: [curve[name][rows[size]] if size in rows else 0.0 for size in more] for name in _LISTS
    }
    return {**curve, **lists}


def add_run(curve: State, index: int, log_value: float) -> None:
    """Add a run's value, in place."""
    weight, mean = curve["weight"][index], curve["mean_log"][index]
    if weight:
        curve["sum_of_squares"] += weight / (weight + 1) * (log_value - mean) ** 2
        curve["degrees_of_freedom"] += 1
    curve["weight"][index] = weight + 1
    curve["mean_log"][index] = mean + (log_value - mean) / (weight + 1)


def add_stopped_run(curve: State, index: int, log_value: float, share: float) -> None:
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


def forget_runs(curve: State) -> None:
    """Forget the values of a curve, in place; keep the noise."""
    for name in _LISTS:
        curve[name] = [0.0] * len(curve[name])
    curve["cusum"] = [0.0, 0.0]


class Draws(NamedTuple):
    """Draws of the posterior.

    Args:
        epochs: (size, n), expected log epochs.
        epoch_cost: (size, n), expected log cost of an epoch.
        noise: (size, 1), standard deviation of a run's log cost.
    """

    epochs: Floats
    epoch_cost: Floats
    noise: Floats

    @property
    def log_cost(self) -> Floats:
        """(size, n), the expected log cost of a run."""
        return self.epochs + self.epoch_cost


@dataclass(frozen=True)
class CostPosterior:
    """The posterior of a run's log cost for each of n batch sizes.

    Args:
        epochs: That of the log epochs.
        epoch_cost: That of the log cost of an epoch, in joules.
        is_measured: Whether any epoch was measured on this hardware. If not, costs are those of
            other hardware: they can be compared with each other, but their height is unknown.
        has_converged: (n,), whether a batch size has converged, outliers left out.
    """

    epochs: Posterior
    epoch_cost: Posterior
    is_measured: bool
    has_converged: NDArray[np.bool_]

    @cached_property
    def mean(self) -> Floats:
        """(n,), the expected log costs."""
        return self.epochs.mean + self.epoch_cost.mean

    @cached_property
    def variance(self) -> Floats:
        """(n,), the variances of the expected log costs."""
        return self.epochs.variance + self.epoch_cost.variance

    @property
    def noise_variance(self) -> float:
        """The variance of a run's log cost around its expectation."""
        return self.epochs.noise_variance + self.epoch_cost.noise_variance

    def draw(self, size: int, rng: np.random.Generator) -> Draws:
        """Draw from the posterior."""
        epochs, epochs_noise = self.epochs.draw(size, rng)
        epoch_cost, epoch_cost_noise = self.epoch_cost.draw(size, rng)
        return Draws(epochs, epoch_cost, np.hypot(epochs_noise, epoch_cost_noise))


def epochs_posterior(spec: JobSpec, epochs: State) -> Posterior | None:
    """The posterior of the log epochs; None before any run has converged."""
    if not is_known(epochs):
        return None
    return infer(epochs, spec.batch_sizes, EPOCHS)


def without_outlier(spec: JobSpec, epochs: State) -> State:
    """The curve of the epochs without its largest value, if that is an outlier.

    The only value of a batch size is an outlier if it is far larger than the values of all other
    batch sizes, and the other runs, at least two, make it unlikely. Its batch size is then tried
    again, and after that both values count. Checking the ratio first saves most decisions a second
    inference.
    """
    weight, mean_log = epochs["weight"], epochs["mean_log"]
    if sum(weight) <= 2:
        return epochs
    largest = max((i for i, each in enumerate(weight) if each), key=mean_log.__getitem__)
    if weight[largest] > 1:
        return epochs
    others = {**epochs, "weight": [*weight[:largest], 0.0, *weight[largest + 1 :]]}
    next_largest = max(mean for mean, each in zip(mean_log, others["weight"], strict=True) if each)
    if mean_log[largest] < next_largest + math.log(OUTLIER_RATIO):
        return epochs
    probability = infer(others, spec.batch_sizes, EPOCHS).exceeds(largest, mean_log[largest])
    return others if probability < OUTLIER_PROBABILITY else epochs


def epoch_cost_posterior(spec: JobSpec, curves: dict[str, State], key: str) -> Posterior | None:
    """The posterior of the log cost of an epoch on the hardware with a key; None if unknown.

    If no epoch was measured there, it is that of the other hardware with the most runs. Otherwise,
    that one's mean is evidence for the shape; with its variance, what was never tried would look
    worth a try on each hardware.
    """
    other = _of_other_hardware(spec, curves, key)
    if key not in curves or not is_known(curves[key]):
        return other
    mean = None if other is None else tuple(other.mean.tolist())
    return infer(curves[key], spec.batch_sizes, EPOCH_COST, mean)


def _of_other_hardware(spec: JobSpec, curves: dict[str, State], key: str) -> Posterior | None:
    """What the hardware with the most runs, but for that with a key, shows of the curve there.

    The cost of an epoch follows from the batch of each device. So the curve of another number of
    devices of the same model is read where a device's batch is as large.
    """
    others = {name: each for name, each in curves.items() if name != key and is_known(each)}
    if not others:
        return None
    most = max(others, key=lambda name: sum(others[name]["weight"]))
    ratio = devices_for_each(most, key)
    there = [size * ratio for size in spec.batch_sizes]
    sizes = sorted({*spec.batch_sizes, *there})
    known = with_more_sizes(others[most], spec.batch_sizes, sizes)
    return infer(known, sizes, EPOCH_COST).at([sizes.index(size) for size in there])


def cost_posterior(
    spec: JobSpec, epochs: State, curves: dict[str, State], key: str
) -> CostPosterior | None:
    """The posterior of the log costs on the hardware with a key; None if nothing is known.

    Args:
        spec: The job.
        epochs: What is known of the epochs.
        curves: What is known of the cost of an epoch, by the hardware's key.
        key: The hardware's.
    """
    epochs = without_outlier(spec, epochs)
    of_epochs = epochs_posterior(spec, epochs)
    of_epoch_cost = epoch_cost_posterior(spec, curves, key)
    if of_epochs is None or of_epoch_cost is None:
        return None
    is_measured = key in curves and is_known(curves[key])
    return CostPosterior(of_epochs, of_epoch_cost, is_measured, np.array(epochs["weight"]) > 0)
