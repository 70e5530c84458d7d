"""The posterior of what a run costs: the epochs to the target times the cost of an epoch.

The epochs depend on the batch size alone; they are integers, and noisy. The cost of an epoch
depends on the batch size and the hardware; it hardly varies, and a run that has
trained for one epoch has shown it. Each is a curve of its own, see `curve_model`, and the two are
independent.

What a run shows of the epochs is evidence for all hardware. What other hardware has shown of the
cost of an epoch is evidence for the shape of the curve, not for its height.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit import curve
from zeus_service.bandit.curve_model import Floats, Posterior, Prior, infer
from zeus_service.bandit.policy import State
from zeus_service.bandit.spec import JobSpec, devices_for_each

EPOCHS = Prior(
    slopes=(0.1, 0.3, 0.7, 1.5),
    noises=(0.01, 0.03, 0.08, 0.2, 0.4),
    knee_residuals=((0.03, 0.02), (0.12, 0.06)),
    any_curve_residual=(0.4, 0.2),
)
EPOCH_COST = Prior(
    slopes=(-0.2, -0.45, -0.7),
    noises=(0.01, 0.03, 0.1),
    knee_residuals=((0.05, 0.03), (0.2, 0.15)),
    any_curve_residual=(0.4, 0.2),
)

OUTLIER = 0.01
"""A lone value is left out if the other runs give a larger one a probability below this."""


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
    if not curve.is_known(epochs):
        return None
    return infer(epochs, spec.batch_sizes, EPOCHS)


def without_outlier(spec: JobSpec, epochs: State) -> State:
    """The curve of the epochs without its largest value, if that is an outlier.

    It is one if its batch size has had no other run that converged, and the other runs, at least
    two, make such a value unlikely. So the batch size is tried again, and then both values count.
    """
    weight, mean_log = epochs["weight"], epochs["mean_log"]
    if sum(weight) <= 2:
        return epochs
    largest = max((i for i, each in enumerate(weight) if each), key=mean_log.__getitem__)
    if weight[largest] > 1:
        return epochs
    others = {**epochs, "weight": [*weight[:largest], 0.0, *weight[largest + 1 :]]}
    probability = infer(others, spec.batch_sizes, EPOCHS).exceeds(largest, mean_log[largest])
    return others if probability < OUTLIER else epochs


def epoch_cost_posterior(spec: JobSpec, curves: dict[str, State], key: str) -> Posterior | None:
    """The posterior of the log cost of an epoch on the hardware with a key; None if unknown.

    If no epoch was measured there, it is that of the other hardware with the most runs. Otherwise,
    that one's mean is evidence for the shape; with its variance, what was never tried would look
    worth a try on each hardware.
    """
    other = _of_other_hardware(spec, curves, key)
    if key not in curves or not curve.is_known(curves[key]):
        return other
    mean = None if other is None else tuple(other.mean.tolist())
    return infer(curves[key], spec.batch_sizes, EPOCH_COST, mean)


def _of_other_hardware(spec: JobSpec, curves: dict[str, State], key: str) -> Posterior | None:
    """What the hardware with the most runs, but for that with a key, shows of the curve there.

    The cost of an epoch follows from the batch of each device. So the curve of another number of
    devices of the same model is read where a device's batch is as large.
    """
    others = {name: each for name, each in curves.items() if name != key and curve.is_known(each)}
    if not others:
        return None
    most = max(others, key=lambda name: sum(others[name]["weight"]))
    ratio = devices_for_each(most, key)
    there = [size * ratio for size in spec.batch_sizes]
    sizes = sorted({*spec.batch_sizes, *there})
    known = curve.over(others[most], spec.batch_sizes, sizes)
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
    is_measured = key in curves and curve.is_known(curves[key])
    return CostPosterior(of_epochs, of_epoch_cost, is_measured, np.array(epochs["weight"]) > 0)
