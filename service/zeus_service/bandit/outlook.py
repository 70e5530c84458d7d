"""What the state of an information-directed job says about its next trial on some hardware.

`cost_model` has the costs of runs that converge. Whether they do is modelled here: the posterior,
and which batch sizes are given up.

A batch size either never converges, or its runs fail now and then. How often is about the same for
all that have ever converged, so that one failure of a good batch size says little: each one's
posterior starts from the rate of all of them.

A batch size that has not converged yet either never will, or had as much bad luck as it has failed.
Before its own tries, the former is as likely as the tries of the others make it, which count half
for each octave of distance, and together as at most two tries. Between two that have converged,
almost every batch size does: `PRIOR_NEVER_BETWEEN`. Above the largest and below the smallest that
has converged, the probability of never converging does not fall with the distance.

One that has converged may never do so again: the data have grown, or the memory is smaller. How
likely that is follows from its failures in a row in the same way.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit.cost_model import CostPosterior, Draws, cost_posterior, new_curve
from zeus_service.bandit.curve_model import Floats, lowest, normal_cdf
from zeus_service.bandit.policy import State
from zeus_service.bandit.spec import Hardware, JobSpec

COST_OF_FAILURE = 4.0
"""Of a run that fails without an early stop, or of a recurrence with a batch size that never
converges, in costs of the best batch size."""
BOUND_DEVIATIONS = 2.0
"""The early-stop bound is at least so many standard deviations above the best batch size's cost."""

PRIOR_FAILURE = 0.02
"""Prior probability that a run fails, and that a batch size never converges; it weighs as much as
one try."""
LEAST_BAD_LUCK = 0.1
"""The least probability that each of several failures in a row of a batch size that has converged
is bad luck, since one cause can strike several runs."""
NEIGHBOUR_TRIES = 2.0
"""All other batch sizes together count as at most this many tries."""
POOLED_TRIES = 40.0
"""The rate of all batch sizes that have converged counts as this many tries of each."""
PRIOR_NEVER_BETWEEN = 0.003
"""Probability that a batch size between two that have converged never does."""
PRIOR_NEVER_AGAIN = 1e-5
"""Probability that a batch size that has converged never does so again, before its failures."""
FAILURES_TO_GIVE_UP = 2
"""Failures after which a batch size is given up. Those for memory are added up over all batch sizes
that are as large or smaller, but larger than any that has trained."""


class Outlook:
    """Expected costs of the next try, relative to those of the best batch size.

    Attributes:
        never: (n,), the probability that a batch size never converges, or never again.
        log_retries: (n,), the share of retries in `log_cost`, if it ever converges.
        log_cost: (n,), the expected log cost of a recurrence if a batch size is always chosen.
    """

    def __init__(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        posterior: CostPosterior,
        is_alive: NDArray[np.bool_],
    ) -> None:
        self._posterior = posterior
        self.never, rate = failure_probabilities(spec, state, hardware)
        self._log_unit = float(posterior.mean[posterior.has_converged].min())
        log_bound = log_cost_bound(spec, state, hardware, posterior, is_alive)
        self._log_bound = log_bound - self._log_unit
        self._failure = math.exp(min(self._log_bound, math.log(COST_OF_FAILURE)))
        self.log_retries = np.log1p(rate / (1 - rate) * self._failure)
        self._failing = self.never + (1 - self.never) * rate
        self.log_cost = posterior.mean + self.log_retries + math.log(COST_OF_FAILURE) * self.never

    def best(self, alive: NDArray[np.intp]) -> int:
        """The index of the cheapest among those alive that have a cost."""
        known = alive[self._posterior.has_converged[alive]]
        known = known if len(known) else alive
        return int(known[lowest(self.log_cost[known])])

    def cost_now(self, draws: Draws) -> Floats:
        """(n,), the expected cost of a try, and of a retry with the best batch size if it fails."""
        log_cost = np.minimum(draws.log_cost - self._log_unit, 30)  # so that `exp` is finite
        noises = draws.noise
        cost = np.exp(log_cost + noises**2 / 2)
        retry = math.exp(self._posterior.noise_variance / 2)
        if math.isfinite(self._log_bound):
            # The mean of a log-normal cost that is censored at the bound.
            bound = math.exp(min(self._log_bound, 30))
            above_bound = (log_cost - self._log_bound) / noises
            below = normal_cdf(-above_bound - noises)
            cost = cost * below + (bound + retry) * normal_cdf(above_bound)
        failing = self._failing
        expected: Floats = (1 - failing) * cost.mean(axis=0) + failing * (self._failure + retry)
        return expected


def information_gain(
    values: Floats, sought: NDArray[np.intp], noise_variance: float, running: NDArray[np.intp]
) -> Floats:
    """(n,), what one more run of each batch size tells about which one is sought.

    The means of so few draws also differ by chance, so that part of the variance between them is
    subtracted (epsilon squared; Kelley, "An unbiased correlation ratio measure", PNAS 21, 1935).
    An entry can be negative: in a sum, it cancels what chance adds to others.

    Args:
        values: (draws, n), draws of the expected value of what a run shows; more draws than n.
        sought: (draws,), the index of the batch size that is sought in a draw.
        noise_variance: Of a run's value around its expectation.
        running: (n,), trials that will show the same.
    """
    draws, groups = len(values), np.unique(sought)
    is_sought = (sought == groups[:, None]).astype(float)
    times = is_sought.sum(axis=1)
    mean_if_sought = is_sought @ values / times[:, None]
    deviation = mean_if_sought - values.mean(axis=0)
    between = (times / draws) @ np.square(deviation)
    total = values.var(axis=0)
    by_chance = (len(groups) - 1) / (draws - len(groups)) * (total - between)
    explained = between - by_chance

    def after(runs: NDArray[np.intp]) -> Floats:
        noise = noise_variance / np.maximum(runs, 1)
        return np.where(runs > 0, -np.log1p(-explained / (total + noise)), 0.0)

    information: Floats = after(running + 1) - after(running)
    return information


def new_hardware(count: int) -> State:
    """What is known of hardware on which no trial has ended, for `count` batch sizes."""
    return {  # lists have an entry per batch size
        "epoch_cost": new_curve(count),
        "pulls": [0] * count,  # number of results
        "fits": 0,  # largest batch size that trained
        "out_of_memory": [0] * count,  # number of tries that ran out of memory
        "stops_in_a_row": 0,  # early, of batch sizes that have converged before
        "out_of_memory_in_a_row": [0] * count,  # since the last that converged
    }


def hardware_state(spec: JobSpec, state: State, hardware: Hardware) -> State:
    """What is known of one hardware alone."""
    own: State = state["hardware"].get(hardware.key) or new_hardware(len(spec.batch_sizes))
    return own


def infer_costs(spec: JobSpec, state: State, hardware: Hardware) -> CostPosterior | None:
    """The posterior of the costs; None if nothing is known of them."""
    return cost_posterior(spec, state["epochs"], epoch_costs(state), hardware.key)


def epoch_costs(state: State) -> dict[str, State]:
    """What is known of the cost of an epoch, by the key of the hardware."""
    return {key: own["epoch_cost"] for key, own in state["hardware"].items()}


def failure_probabilities(spec: JobSpec, state: State, hardware: Hardware) -> tuple[Floats, Floats]:
    """Compute how likely a batch size fails for another reason than its cost.

    Returns:
        Two arrays of shape (n,): the probability that a batch size never converges, or never
        again; and the probability that a run fails although its batch size can converge.
    """
    here = _count_failures(spec, state, hardware)
    ever, converged = np.array(here["ever_converged"]), np.array(here["converged"])
    failed = np.array(here["failed"])  # tries, like `converged`; some in fractions
    tries = converged + failed
    of_ever = PRIOR_FAILURE + np.where(ever, failed, 0).sum()
    of_tries = 1 + np.where(ever, tries, 0).sum()
    pooled = of_ever / of_tries
    rate = (POOLED_TRIES * pooled + failed) / (POOLED_TRIES + tries)

    weights = _neighbour_weights(tuple(spec.batch_sizes))
    failures_near = weights @ np.where(ever, 0, failed)
    successes_near = weights @ converged
    scale = NEIGHBOUR_TRIES / np.maximum(failures_near + successes_near, NEIGHBOUR_TRIES)
    failures = PRIOR_FAILURE + scale * failures_near
    successes = 1 - PRIOR_FAILURE + scale * successes_near
    before = failures / (failures + successes)
    bad_luck = pooled**failed
    between = np.maximum.accumulate(ever) & np.maximum.accumulate(ever[::-1])[::-1]
    before = np.where(between, np.minimum(before, PRIOR_NEVER_BETWEEN), before)
    before = np.where(ever, PRIOR_NEVER_AGAIN, before)
    in_a_row = np.array(here["hard_failures"])  # since the last try that converged
    otherwise = (of_ever - in_a_row) / np.maximum(of_tries - in_a_row, 1)
    bad_luck_in_a_row = np.maximum(otherwise, LEAST_BAD_LUCK) ** in_a_row
    bad_luck = np.where(ever, bad_luck_in_a_row, bad_luck)
    never: Floats = before / (before + (1 - before) * bad_luck)
    known = np.flatnonzero(ever)
    if known.size:
        for further_out in never[known[-1] + 1 :], never[: known[0]][::-1]:
            np.maximum.accumulate(further_out, out=further_out)
    return never, np.where(ever, rate, pooled)


def log_cost_bound(
    spec: JobSpec,
    state: State,
    hardware: Hardware,
    posterior: CostPosterior,
    is_alive: NDArray[np.bool_],
) -> float:
    """The logarithm of the early-stopping threshold in joules; infinite if there is none."""
    if spec.beta_knob is None or not posterior.is_measured:
        return math.inf
    known = posterior.has_converged & is_alive
    if not known.any():
        return math.inf
    best = np.flatnonzero(known)[lowest(posterior.mean[known])]
    noise = posterior.noise_variance
    mean = float(posterior.mean[best])
    room = BOUND_DEVIATIONS * math.sqrt(noise + float(posterior.variance[best]))
    doublings: int = max(0, hardware_state(spec, state, hardware)["stops_in_a_row"] - 1)
    bound = max(mean + noise / 2 + math.log(spec.beta_knob), mean + room)
    return bound + doublings * math.log(2)


def find_alive(spec: JobSpec, state: State, hardware: Hardware) -> NDArray[np.bool_]:
    """(n,), whether a batch size was not given up."""
    return np.array([not reason for reason in why_given_up(spec, state, hardware)])


def why_given_up(spec: JobSpec, state: State, hardware: Hardware) -> list[str]:
    """For each batch size, the result for which it was given up; empty if it was not.

    One that has ever converged, on any hardware, is given up only for this hardware's memory: later
    failures may be bad luck.
    """
    here = _count_failures(spec, state, hardware)
    return [
        "out_of_memory"
        if exceeds_memory
        else ""
        if ever_converged
        else str(failure)
        if hard_failures >= FAILURES_TO_GIVE_UP
        else ""
        for ever_converged, exceeds_memory, hard_failures, failure in zip(
            here["ever_converged"],
            _exceeds_memory(spec, here),
            here["hard_failures"],
            here["failure"],
            strict=True,
        )
    ]


def _count_failures(spec: JobSpec, state: State, hardware: Hardware) -> State:
    """The state with counts of failures: of all hardware, but out of memory of this one."""
    own = hardware_state(spec, state, hardware)
    in_a_row = [
        failures + (out if ever else 0)
        for failures, out, ever in zip(
            state["hard_failures"],
            own["out_of_memory_in_a_row"],
            state["ever_converged"],
            strict=True,
        )
    ]
    failed = np.add(state["failed"], own["out_of_memory"]).tolist()
    return {**state, **own, "hard_failures": in_a_row, "failed": failed}


def _exceeds_memory(spec: JobSpec, state: State) -> list[bool]:
    """Whether a batch size is too large for the memory: none so large has trained.

    Once may be bad luck: something else may have taken the memory.
    """
    tries = zip(spec.batch_sizes, state["out_of_memory"], strict=True)
    beyond = accumulate(failures if size > state["fits"] else 0 for size, failures in tries)
    return [failures >= FAILURES_TO_GIVE_UP for failures in beyond]


@lru_cache(maxsize=256)
def _neighbour_weights(batch_sizes: tuple[int, ...]) -> Floats:
    """(n, n), the weight of a try of the second batch size for the first; 0 for the same one."""
    octave = np.log2(batch_sizes)
    weights: Floats = 0.5 ** np.abs(octave[:, None] - octave)
    np.fill_diagonal(weights, 0.0)
    return weights
