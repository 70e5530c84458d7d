"""Information-directed sampling over a valley of costs; `docs/policies.md` describes the method.

**Models.** `cost_model.py` has the posterior of what a run costs that converges, `failure_model.py`
the posterior of whether a run converges. A run that was stopped early was either slow or would
never have converged: it counts as a failure with the probability of the latter.

**Choice.** The batch size `i` with the smallest `regret[i]^2.5 / information[i]` is chosen. The
regret is the cost that is expected to be lost by trying `i` now instead of the best batch size,
retries and early stops included. With `k` trials of `i` running, the information is

    log(1 + (k + 1) v / sigma^2) - log(1 + k v / sigma^2)

where `v` is the variance of the expected log cost of `i` over which batch size is the best. All are
estimated from draws of the posterior. Exploration ends by itself once no cost would change the
choice. Until a run has converged, all trials get the default, or the nearest to it of the batch
sizes that failed least. Source: Russo and Van Roy, "Learning to optimize via information-directed
sampling", Operations Research 66(1), 2018, where the exponent is 2 and two actions are mixed.

**Early stop.** The bound is `beta_knob` times the estimated cost of the best batch size, which one
lucky run does not lower; but at least two standard deviations above the cost of its runs. When runs
of batch sizes that have converged before are stopped one after the other, the bound doubles each
time after the first: a job that has become slower for good converges again.

**Drift.** The surprises of a job's runs, deviations of their log costs from the expectation, are
added up in both directions. When a sum exceeds its threshold, the job has changed: costs are
forgotten, and exploration starts again. Source: Page, "Continuous inspection schemes", Biometrika
41, 1954. With a `window_size`, earlier runs also count less: by the factor `1 - 1 / window_size`
for each later result.
"""

import math
from collections.abc import Collection
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit.cost_model import (
    LEAST_WEIGHT,
    Evidence,
    Floats,
    Posterior,
    infer,
    lowest,
    normal_cdf,
)
from zeus_service.bandit.failure_model import failure_probabilities, why_given_up
from zeus_service.bandit.inconclusive import passed_over
from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    State,
    Why,
    counted,
    reproducible,
)
from zeus_service.bandit.spec import JobSpec

DRAWS = 256
REGRET_EXPONENT = 2.5
"""2 in the source. A larger exponent explores less, and nearer to the best batch size."""
TRAINED = ("converged", "early_stopped", "not_converged", "diverged")
"""Results of runs that did not run out of memory."""
LEAST_COST = 1e-300
"""In joules. A smaller cost means that the meter does not count."""
COST_OF_FAILURE = 4.0
"""Of a run that fails without an early stop, or of a recurrence with a batch size that never
converges, in costs of the best batch size."""
BOUND_DEVIATIONS = 2.0
"""The early-stop bound is at least so many standard deviations above the best batch size's cost."""
DRIFT_ALLOWANCE = 0.75
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 5.0
LEAST_PROBABILITY = 3e-5
"""That of a surprise by 4 standard deviations: one alone does not exceed the threshold."""


class InformationDirectedPolicy:
    """Chooses the smallest regret per information; see the module's docstring."""

    name = "information_directed"

    def initial_state(self, spec: JobSpec) -> State:
        """Zeros: no trial has been observed."""
        count = len(spec.batch_sizes)
        return {  # lists have an entry per batch size
            "weight": [0.0] * count,  # number of costs
            "mean_log_cost": [0.0] * count,
            "stopped": [0.0] * count,  # number of runs stopped as too slow
            "stopped_mean_log_cost": [0.0] * count,
            "sum_of_squares": 0.0,  # of the deviations from `mean_log_cost`, over all batch sizes
            "degrees_of_freedom": 0.0,
            "converged": [0.0] * count,  # number of tries that converged
            "failed": [0.0] * count,  # number of tries that failed, in fractions
            "pulls": [0] * count,  # number of results
            "ever_converged": [False] * count,
            # number of failures but early stops and out of memory; from the first that converges,
            "hard_failures": [0] * count,  # out of memory included, since the last that did
            "out_of_memory": [0] * count,  # number of tries that ran out of memory
            "failure": [None] * count,  # result of the latest failure
            "fits": 0,  # largest batch size that trained
            "unfinished": {},  # counted by `fold`
            "running": {},  # {batch size: number of trials running}
            "cusum": [0.0, 0.0],  # cumulative sums of surprises: [dearer, cheaper]
            "stops_in_a_row": 0,  # of batch sizes that have converged before
        }

    def next_batch_size(
        self, spec: JobSpec, state: State, rng: np.random.Generator, usable: Collection[int]
    ) -> Choice:
        """The batch size with the least regret for the information that it yields."""
        alive = np.flatnonzero(_alive(spec, state))
        can_use = np.array([spec.batch_sizes[index] in usable for index in alive], bool)
        if not can_use.any():
            raise NoBatchSizeLeft
        passed = passed_over(state)
        eligible = can_use & [spec.batch_sizes[index] not in passed for index in alive]
        if not eligible.any():
            eligible = can_use
        posterior = _posterior(spec, state)
        if posterior is None:
            why: Why = "concurrent" if state["running"] else "explore"
            return Choice(_nearest_to_default(spec, state, alive[eligible]), why)
        outlook = _Outlook(spec, state, posterior)
        best = outlook.best(alive)
        drawn, noises = posterior.draw(DRAWS, rng)
        never = rng.random(DRAWS) < outlook.never[:, None]
        draws = drawn.T + outlook.log_retries[:, None] + math.log(COST_OF_FAILURE) * never
        log_costs = np.ascontiguousarray(draws)[alive]  # (alive, DRAWS)
        lowest = log_costs.min(axis=0)
        regret_of_best = outlook.log_cost[best] - lowest.mean()
        cost_now = outlook.cost_now(drawn, noises)
        regret = cost_now[alive] - cost_now[best] + regret_of_best
        signal = _variance_over_which_is_best(log_costs, lowest) / posterior.noise_variance
        running = np.array([state["running"].get(str(b), 0) for b in spec.batch_sizes])[alive]
        information = np.log1p((running + 1) * signal) - np.log1p(running * signal)
        ratio = np.maximum(regret, 0) ** REGRET_EXPONENT / np.maximum(information, 1e-9)
        chosen = alive[eligible][np.argmin(ratio[eligible])]
        return Choice(spec.batch_sizes[chosen], "exploit" if chosen == best else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """Count a running trial."""
        return {**state, "running": counted(state["running"], choice.batch_size, 1)}

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add the trial's cost or failure to the statistics of its batch size."""
        batch_size = observation.choice.batch_size
        before = {**state, "running": counted(state["running"], batch_size, -1)}
        if observation.result is None:
            return before
        index = spec.batch_sizes.index(batch_size)
        after = _discounted(spec, before)
        after["pulls"][index] += 1
        if observation.result in TRAINED:
            after["fits"] = max(after["fits"], batch_size)
        if observation.result == "converged":
            _add_convergence(spec, before, after, index, observation)
        else:
            after["failure"][index] = observation.result
            _add_failure(spec, before, after, index, observation)
        return after

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """`beta_knob` times the estimated cost of the best batch size, with room for its noise."""
        posterior = _posterior(spec, state)
        log_bound = math.inf if posterior is None else _log_cost_bound(spec, state, posterior)
        return math.exp(min(log_bound, 700.0)) if math.isfinite(log_bound) else math.inf

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """The lowest expected cost, retries included, among those that have converged."""
        posterior = _posterior(spec, state)
        if posterior is None:  # even without a cost, some may have converged
            pairs = zip(spec.batch_sizes, state["ever_converged"], strict=True)
            return next((batch_size for batch_size, ever in pairs if ever), None)
        alive = np.flatnonzero(_alive(spec, state))
        return int(spec.batch_sizes[_Outlook(spec, state, posterior).best(alive)])

    def stage(self, spec: JobSpec, state: State) -> str:
        """`starting` until a run has converged, then `learning`; `exhausted` if all have failed."""
        if not _alive(spec, state).any():
            return "exhausted"
        return "learning" if any(state["ever_converged"]) else "starting"

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """Mean and deviation of each batch size's cost, `exp(f + noise)`, which is log-normal."""
        posterior, passed = _posterior(spec, state), passed_over(state)
        given_up = why_given_up(spec, state)
        arms = []
        for index, batch_size in enumerate(spec.batch_sizes):
            mean = spread = None
            if posterior is not None:
                variance = min(float(posterior.variance[index]), 100.0)
                mean = math.exp(posterior.mean[index] + (variance + posterior.noise_variance) / 2)
                spread = mean * math.sqrt(math.expm1(variance))
            status = given_up[index] or passed.get(batch_size, "alive")
            arms.append(ArmEstimate(batch_size, state["pulls"][index], mean, spread, status))
        return arms


class _Outlook:
    """Expected costs of the next try, relative to those of the best batch size.

    Attributes:
        never: (n,), the probability that a batch size never converges, or never again.
        log_retries: (n,), the share of retries in `log_cost`, if it ever converges.
        log_cost: (n,), the expected log cost of a recurrence if a batch size is always chosen.
    """

    def __init__(self, spec: JobSpec, state: State, posterior: Posterior) -> None:
        self._posterior = posterior
        self._known = np.array(state["weight"]) > LEAST_WEIGHT
        self.never, rate = _failing(spec, state)
        self._log_unit = float(posterior.mean[self._known].min())
        self._log_bound = _log_cost_bound(spec, state, posterior) - self._log_unit
        self._failure = math.exp(min(self._log_bound, math.log(COST_OF_FAILURE)))
        self.log_retries = np.log1p(rate / (1 - rate) * self._failure)
        self._failing = self.never + (1 - self.never) * rate
        self.log_cost = posterior.mean + self.log_retries + math.log(COST_OF_FAILURE) * self.never

    def best(self, alive: NDArray[np.intp]) -> int:
        """The index of the cheapest among those alive that have a cost."""
        known = alive[self._known[alive]]
        return int(known[lowest(self.log_cost[known])])

    def cost_now(self, draws: Floats, noises: Floats) -> Floats:
        """(n,), the expected cost of a try, and of a retry with the best batch size if it fails.

        Args:
            draws: (draws, n), of the expected log costs.
            noises: (draws, 1), standard deviations of a run's log cost.
        """
        log_cost = draws - self._log_unit
        cost = np.exp(np.minimum(log_cost + noises**2 / 2, 30))
        retry = math.exp(self._posterior.noise_variance / 2)
        if math.isfinite(self._log_bound):
            # The mean of a log-normal cost that is censored at the bound.
            bound = math.exp(min(self._log_bound, 30))
            stops = normal_cdf((log_cost - self._log_bound) / noises)
            below = normal_cdf((self._log_bound - log_cost - noises**2) / noises)
            cost = cost * below + (bound + retry) * stops
        failing = self._failing
        expected: Floats = (1 - failing) * cost.mean(axis=0) + failing * (self._failure + retry)
        return expected


def _variance_over_which_is_best(log_costs: Floats, lowest: Floats) -> Floats:
    """(n,), the variance of each batch size's mean, over draws grouped by which one is the best.

    Means of few draws are noisy; a correction for that explored less, and cost more.

    Args:
        log_costs: (n, draws).
        lowest: (draws,), the lowest log cost in each draw.
    """
    is_best = (log_costs == lowest).astype(float)
    times = is_best.sum(axis=1)
    mean_if_best = log_costs @ is_best.T / np.maximum(times, 1)
    variance: Floats = (mean_if_best - log_costs.mean(axis=1)[:, None]) ** 2 @ (times / len(lowest))
    return variance


def _posterior(spec: JobSpec, state: State) -> Posterior | None:
    """The posterior of the costs; None without any cost."""
    if max(state["weight"]) <= LEAST_WEIGHT:
        return None
    evidence = Evidence(
        batch_sizes=tuple(spec.batch_sizes),
        weight=tuple(state["weight"]),
        mean_log_cost=tuple(state["mean_log_cost"]),
        stopped=tuple(state["stopped"]),
        stopped_mean_log_cost=tuple(state["stopped_mean_log_cost"]),
        sum_of_squares=state["sum_of_squares"],
        degrees_of_freedom=state["degrees_of_freedom"],
    )
    return infer(evidence)


def _failing(spec: JobSpec, state: State) -> tuple[Floats, Floats]:
    return failure_probabilities(
        spec.batch_sizes,
        state["converged"],
        state["failed"],
        state["ever_converged"],
        state["hard_failures"],
    )


def _log_cost_bound(spec: JobSpec, state: State, posterior: Posterior) -> float:
    """The logarithm of the early-stop bound; infinite if the job has none."""
    if spec.beta_knob is None:
        return math.inf
    known = np.array(state["weight"]) > LEAST_WEIGHT
    best = np.flatnonzero(known)[lowest(posterior.mean[known])]
    noise = posterior.noise_variance
    mean = float(posterior.mean[best])
    room = BOUND_DEVIATIONS * math.sqrt(noise + float(posterior.variance[best]))
    doublings: int = max(0, state["stops_in_a_row"] - 1)
    bound = max(mean + noise / 2 + math.log(spec.beta_knob), mean + room)
    return bound + doublings * math.log(2)


def _nearest_to_default(spec: JobSpec, state: State, alive: NDArray[np.intp]) -> int:
    """The batch size that failed least, then the nearest to the default, then the smaller."""
    distance = np.abs(np.log2(np.array(spec.batch_sizes) / spec.default_batch_size))
    order = np.lexsort((distance[alive], np.array(state["failed"])[alive]))  # a stable sort
    return int(spec.batch_sizes[alive[order[0]]])


def _alive(spec: JobSpec, state: State) -> NDArray[np.bool_]:
    return np.array([not reason for reason in why_given_up(spec, state)])


def _discounted(spec: JobSpec, state: State) -> State:
    """Copy the state; if the job has a window, earlier trials count less in the copy."""
    # With a window of 1, the run itself would count for nothing.
    kept = 1 - 1 / max(spec.window_size, 2) if spec.window_size else 1.0
    lists = {name: list(value) for name, value in state.items() if isinstance(value, list)}
    for name in ("weight", "stopped", "converged", "failed"):
        lists[name] = [kept * value for value in lists[name]]
    scalars = {name: kept * state[name] for name in ("sum_of_squares", "degrees_of_freedom")}
    return {**state, **lists, **scalars}


def _add_convergence(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    state["stops_in_a_row"] = 0
    state["ever_converged"][index] = True
    state["hard_failures"][index] = 0
    state["converged"][index] += 1
    if observation.cost < LEAST_COST:
        return
    log_cost = reproducible(math.log(observation.cost))
    if _drifted(spec, before, state, index, log_cost):
        _forget_costs(state)
    weight, mean = state["weight"][index], state["mean_log_cost"][index]
    if weight > LEAST_WEIGHT:
        state["sum_of_squares"] += weight / (weight + 1) * (log_cost - mean) ** 2
        state["degrees_of_freedom"] += 1
    state["weight"][index] = weight + 1
    state["mean_log_cost"][index] = mean + (log_cost - mean) / (weight + 1)


def _add_failure(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    posterior = _posterior(spec, before)
    if observation.result != "early_stopped" or posterior is None:
        state["failed"][index] += 1
        out_of_memory = observation.result == "out_of_memory"
        state["out_of_memory"][index] += out_of_memory
        state["hard_failures"][index] += not out_of_memory or state["ever_converged"][index]
        return
    if state["ever_converged"][index]:
        state["stops_in_a_row"] += 1
    log_cost = math.log(max(observation.cost, LEAST_COST))
    if spec.beta_knob is not None:
        # The run had not reached its target, and its next epoch would have crossed the bound.
        log_cost = max(log_cost, _log_cost_bound(spec, before, posterior))
    log_cost = reproducible(log_cost)
    never, rate = (float(each[index]) for each in _failing(spec, before))
    failing = never + (1 - never) * rate
    slow = (1 - failing) * max(posterior.exceeds(index, log_cost), 1e-9)
    failure = reproducible(failing / (failing + slow))
    state["failed"][index] += failure
    share = 1 - failure
    if share > 0:
        stopped = state["stopped"][index] + share
        mean = state["stopped_mean_log_cost"][index]
        state["stopped_mean_log_cost"][index] = mean + (log_cost - mean) * share / stopped
        state["stopped"][index] = stopped


def _drifted(spec: JobSpec, before: State, state: State, index: int, log_cost: float) -> bool:
    """Advance the cumulative sums; return whether the job has changed."""
    posterior = _posterior(spec, before)
    if posterior is None:
        return False
    least = LEAST_PROBABILITY
    probability = min(max(posterior.exceeds(index, log_cost), least), 1 - least)
    surprise = reproducible(-NormalDist().inv_cdf(probability))
    dearer, cheaper = state["cusum"]
    dearer = max(0.0, dearer + surprise - DRIFT_ALLOWANCE)
    cheaper = max(0.0, cheaper - surprise - DRIFT_ALLOWANCE)
    state["cusum"] = [dearer, cheaper]
    return bool(max(dearer, cheaper) > DRIFT_THRESHOLD)


def _forget_costs(state: State) -> None:
    """Forget the costs; keep the noise, and which batch sizes have never converged.

    Of those that have, also forget the failures: since the change, runs may have been just slow.
    """
    for name in ("weight", "mean_log_cost", "stopped", "stopped_mean_log_cost"):
        state[name] = [0.0] * len(state[name])
    pairs = zip(state["failed"], state["ever_converged"], strict=True)
    state["failed"] = [0.0 if ever else failed for failed, ever in pairs]
    state["cusum"] = [0.0, 0.0]
