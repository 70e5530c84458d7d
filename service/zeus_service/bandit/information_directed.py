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
import os
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit import curve
from zeus_service.bandit.cost_model import CostPosterior, cost_posterior, epochs_posterior
from zeus_service.bandit.curve_model import LEAST_WEIGHT, Floats, lowest, normal_cdf
from zeus_service.bandit.failure_model import failure_probabilities, why_given_up
from zeus_service.bandit.hardware import Hardware
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

VARIANT = os.environ.get("VARIANT", "A")
DRAWS = 256
REGRET_EXPONENT = float(os.environ.get("RE", "2.5"))
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


class InformationDirectedPolicy:
    """Chooses the smallest regret per information; see the module's docstring."""

    name = "information_directed"

    def initial_state(self, spec: JobSpec) -> State:
        """Zeros: no trial has been observed."""
        count = len(spec.batch_sizes)
        return {  # lists have an entry per batch size
            "epochs": curve.new(count),  # until the target is reached
            "converged": [0.0] * count,  # number of tries that converged
            "failed": [0.0] * count,  # number of tries that failed, in fractions
            "ever_converged": [False] * count,
            # number of failures but early stops and out of memory, since the last that converged
            "hard_failures": [0] * count,
            "failure": [None] * count,  # result of the latest failure
            "stops_in_a_row": 0,  # of batch sizes that have converged before
            "hardware": {},  # {its key: what is known of it alone, see `_new_hardware`}
            "unfinished": {},  # counted by `fold`
            "running": {},  # {batch size: number of trials running}
        }

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """The batch size with the least regret for the information that it yields."""
        alive = np.flatnonzero(_alive(spec, state, hardware))
        can_use = np.array([spec.batch_sizes[index] in usable for index in alive], bool)
        if not can_use.any():
            raise NoBatchSizeLeft
        passed = passed_over(state)
        eligible = can_use & [spec.batch_sizes[index] not in passed for index in alive]
        if not eligible.any():
            eligible = can_use
        posterior = _posterior(spec, state, hardware)
        if posterior is None:
            why: Why = "concurrent" if state["running"] else "explore"
            return Choice(_nearest_to_default(spec, state, alive[eligible]), why)
        outlook = _Outlook(spec, state, hardware, posterior)
        best = outlook.best(alive)
        drawn = posterior.draw(DRAWS, rng)
        never = rng.random(DRAWS) < outlook.never[:, None]
        failing = outlook.log_retries[:, None] + math.log(COST_OF_FAILURE) * never
        draws = drawn.epochs.T + drawn.epoch_cost.T + failing
        log_costs = np.ascontiguousarray(draws)[alive]  # (alive, DRAWS)
        lowest = log_costs.min(axis=0)
        regret_of_best = outlook.log_cost[best] - lowest.mean()
        cost_now = outlook.cost_now(drawn)
        regret = cost_now[alive] - cost_now[best] + regret_of_best
        running = np.array([state["running"].get(str(b), 0) for b in spec.batch_sizes])[alive]
        signal = _variance_over_which_is_best(log_costs, lowest) / posterior.noise_variance
        information = np.log1p((running + 1) * signal) - np.log1p(running * signal)
        if VARIANT == "B":
            is_best = (log_costs == lowest).astype(float)
            s1 = (
                _var_best(drawn.epochs.T[alive] + failing[alive], is_best)
                / posterior.epochs.noise_variance
            )
            s2 = _var_best(drawn.epoch_cost.T[alive], is_best) / posterior.epoch_cost.noise_variance
            information = sum(np.log1p((running + 1) * s) - np.log1p(running * s) for s in (s1, s2))
        if VARIANT in "CDE":
            is_best = (log_costs == lowest).astype(float)

            def gain(values, noise):
                v = _var_best(values, is_best)
                total = values.var(axis=1)
                def info(k):
                    with np.errstate(divide="ignore"):
                        return -np.log1p(-v / (total + noise / k + 1e-12))
                return info(running + 1) - np.where(running, info(np.maximum(running, 1)), 0)

            if VARIANT in "CE":
                information = gain(drawn.epochs.T[alive] + failing[alive], posterior.epochs.noise_variance) + gain(drawn.epoch_cost.T[alive], posterior.epoch_cost.noise_variance)
            else:
                information = gain(log_costs, posterior.noise_variance)
        if VARIANT == "E":
            q = is_best.mean(axis=1)
            q = q[q > 0]
            information = np.minimum(information, -2 * float(q @ np.log(q)))
        ratio = np.maximum(regret, 0) ** REGRET_EXPONENT / np.maximum(information, 1e-9)
        chosen = alive[eligible][np.argmin(ratio[eligible])]
        return Choice(spec.batch_sizes[chosen], "exploit" if chosen == best else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """Count a running trial."""
        return {**state, "running": counted(state["running"], choice.batch_size, 1)}

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add the trial's epochs, their cost, or its failure to what is known."""
        batch_size, result = observation.choice.batch_size, observation.result
        before = {**state, "running": counted(state["running"], batch_size, -1)}
        if result is None:
            return before
        index = spec.batch_sizes.index(batch_size)
        after = _discounted(spec, before, observation.hardware)
        own = _own(spec, after, observation.hardware)
        own["pulls"][index] += 1
        if result in TRAINED:
            own["fits"] = max(own["fits"], batch_size)
        if result == "converged":
            _add_convergence(spec, before, after, index, observation)
        else:
            after["failure"][index] = result
            _add_failure(spec, before, after, index, observation)
        _add_epoch_cost(spec, before, own, index, observation)
        return after

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """`beta_knob` times the estimated cost of the best batch size, with room for its noise."""
        posterior = _posterior(spec, state, hardware)
        log_bound = math.inf if posterior is None else _log_cost_bound(spec, state, posterior)
        return math.exp(min(log_bound, 700.0)) if math.isfinite(log_bound) else math.inf

    def least_epochs(self, spec: JobSpec, state: State, batch_size: int) -> float:
        """The epochs that a run with a batch size takes at the least, as far as is known."""
        posterior = epochs_posterior(spec, state["epochs"])
        if posterior is None or os.environ.get("LEAST") == "0":
            return 0.0
        index = spec.batch_sizes.index(batch_size)
        return math.exp(float(_least_log_epochs(posterior)[index]))

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """The lowest expected cost, retries included, among those that have converged."""
        posterior = _posterior(spec, state, hardware)
        if posterior is None:  # even without a cost, some may have converged
            pairs = zip(spec.batch_sizes, state["ever_converged"], strict=True)
            return next((batch_size for batch_size, ever in pairs if ever), None)
        alive = np.flatnonzero(_alive(spec, state, hardware))
        if not len(alive):
            return None
        return int(spec.batch_sizes[_Outlook(spec, state, hardware, posterior).best(alive)])

    def stage(self, spec: JobSpec, state: State, hardware: Hardware) -> str:
        """`starting` until a run has converged, then `learning`; `exhausted` if all have failed."""
        if not _alive(spec, state, hardware).any():
            return "exhausted"
        return "learning" if any(state["ever_converged"]) else "starting"

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """Mean and deviation of each batch size's cost, `exp(f + noise)`, which is log-normal.

        They are unknown on hardware on which no epoch was measured.
        """
        posterior, passed = _posterior(spec, state, hardware), passed_over(state)
        given_up = why_given_up(spec, _here(spec, state, hardware))
        own = _own(spec, state, hardware)
        arms = []
        for index, batch_size in enumerate(spec.batch_sizes):
            mean = spread = None
            if posterior is not None and posterior.is_measured:
                variance = min(float(posterior.variance[index]), 100.0)
                mean = math.exp(posterior.mean[index] + (variance + posterior.noise_variance) / 2)
                spread = mean * math.sqrt(math.expm1(variance))
            status = given_up[index] or passed.get(batch_size, "alive")
            arms.append(ArmEstimate(batch_size, own["pulls"][index], mean, spread, status))
        return arms


class _Outlook:
    """Expected costs of the next try, relative to those of the best batch size.

    Attributes:
        never: (n,), the probability that a batch size never converges, or never again.
        log_retries: (n,), the share of retries in `log_cost`, if it ever converges.
        log_cost: (n,), the expected log cost of a recurrence if a batch size is always chosen.
    """

    def __init__(
        self, spec: JobSpec, state: State, hardware: Hardware, posterior: CostPosterior
    ) -> None:
        self._posterior = posterior
        self._known = np.array(state["epochs"]["weight"]) > LEAST_WEIGHT
        self.never, rate = _failing(spec, state, hardware)
        self._log_unit = float(posterior.mean[self._known].min())
        self._log_bound = _log_cost_bound(spec, state, posterior) - self._log_unit
        self._failure = math.exp(min(self._log_bound, math.log(COST_OF_FAILURE)))
        self.log_retries = np.log1p(rate / (1 - rate) * self._failure)
        self._failing = self.never + (1 - self.never) * rate
        self.log_cost = posterior.mean + self.log_retries + math.log(COST_OF_FAILURE) * self.never

    def best(self, alive: NDArray[np.intp]) -> int:
        """The index of the cheapest among those alive that have a cost."""
        known = alive[self._known[alive]]
        known = known if len(known) else alive
        return int(known[lowest(self.log_cost[known])])

    def cost_now(self, drawn) -> Floats:
        """(n,), the expected cost of a try, and of a retry with the best batch size if it fails.

        Args:
            draws: (draws, n), of the expected log costs.
            noises: (draws, 1), standard deviations of a run's log cost.
        """
        noises = drawn.noise
        log_cost = drawn.epochs + drawn.epoch_cost - self._log_unit
        cost = np.exp(np.minimum(log_cost + noises**2 / 2, 30))
        retry = math.exp(self._posterior.noise_variance / 2)
        if math.isfinite(self._log_bound):
            # The mean of a log-normal cost that is censored at the bound.
            bound = math.exp(min(self._log_bound, 30))
            stops = normal_cdf((log_cost - self._log_bound) / noises)
            below = normal_cdf((self._log_bound - log_cost - noises**2) / noises)
            cost = cost * below + (bound + retry) * stops
            if os.environ.get("LEAST") != "0":
                log_epoch_cost = drawn.epoch_cost - self._log_unit
                at_once = log_epoch_cost + _least_log_epochs(self._posterior.epochs) > self._log_bound
                cost = np.where(at_once, np.exp(np.minimum(log_epoch_cost, 30)) + retry, cost)
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


def _var_best(values: Floats, is_best: Floats) -> Floats:
    times = is_best.sum(axis=1)
    mean_if_best = values @ is_best.T / np.maximum(times, 1)
    variance: Floats = (mean_if_best - values.mean(axis=1)[:, None]) ** 2 @ (
        times / is_best.shape[1]
    )
    return variance


def _least_log_epochs(posterior):
    d = float(os.environ.get("LD", "2"))
    return posterior.mean - d * np.sqrt(posterior.variance + posterior.noise_variance)


def _new_hardware(count: int) -> State:
    return {  # lists have an entry per batch size
        "epoch_cost": curve.new(count),
        "pulls": [0] * count,  # number of results
        "fits": 0,  # largest batch size that trained
        "out_of_memory": [0] * count,  # number of tries that ran out of memory
        "out_of_memory_in_a_row": [0] * count,  # since the last that converged
    }


def _own(spec: JobSpec, state: State, hardware: Hardware) -> State:
    """What is known of one hardware alone."""
    own: State = state["hardware"].get(hardware.key) or _new_hardware(len(spec.batch_sizes))
    return own


def _posterior(spec: JobSpec, state: State, hardware: Hardware) -> CostPosterior | None:
    """The posterior of the costs; None if nothing is known of them."""
    curves = {key: own["epoch_cost"] for key, own in state["hardware"].items()}
    return cost_posterior(spec, state["epochs"], curves, hardware.key)


def _here(spec: JobSpec, state: State, hardware: Hardware) -> State:
    """Counts for `failure_model`: failures of all hardware, and out of memory of this one."""
    own = _own(spec, state, hardware)
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


def _failing(spec: JobSpec, state: State, hardware: Hardware) -> tuple[Floats, Floats]:
    here = _here(spec, state, hardware)
    return failure_probabilities(
        spec.batch_sizes,
        here["converged"],
        here["failed"],
        here["ever_converged"],
        here["hard_failures"],
    )


def _log_cost_bound(spec: JobSpec, state: State, posterior: CostPosterior) -> float:
    """The logarithm of the early-stop bound; infinite if the job has none."""
    if spec.beta_knob is None or not posterior.is_measured:
        return math.inf
    known = np.array(state["epochs"]["weight"]) > LEAST_WEIGHT
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


def _alive(spec: JobSpec, state: State, hardware: Hardware) -> NDArray[np.bool_]:
    here = _here(spec, state, hardware)
    return np.array([not reason for reason in why_given_up(spec, here)])


def _discounted(spec: JobSpec, state: State, hardware: Hardware) -> State:
    """Copy the state; if the job has a window, earlier trials count less in the copy."""
    # With a window of 1, the run itself would count for nothing.
    kept = 1 - 1 / max(spec.window_size, 2) if spec.window_size else 1.0
    lists = {name: list(value) for name, value in state.items() if isinstance(value, list)}
    for name in ("converged", "failed"):
        lists[name] = [kept * value for value in lists[name]]
    own = _own(spec, state, hardware)
    own = {name: list(value) if isinstance(value, list) else value for name, value in own.items()}
    own["epoch_cost"] = curve.discounted(own["epoch_cost"], kept)
    own["out_of_memory"] = (
        [kept * value for value in own["out_of_memory"]] if kept < 1 else own["out_of_memory"]
    )
    return {
        **state,
        **lists,
        "epochs": curve.discounted(state["epochs"], kept),
        "hardware": {**state["hardware"], hardware.key: own},
    }


def _add_convergence(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    own = _own(spec, state, observation.hardware)
    state["stops_in_a_row"] = 0
    state["ever_converged"][index] = True
    state["hard_failures"][index] = own["out_of_memory_in_a_row"][index] = 0
    state["converged"][index] += 1
    if observation.cost < LEAST_COST:
        return
    log_epochs = reproducible(math.log(max(observation.epochs, 1)))
    posterior = epochs_posterior(spec, before["epochs"])
    if posterior and curve.has_drifted(state["epochs"], posterior, index, log_epochs):
        _forget_epochs(state)
    curve.add(state["epochs"], index, log_epochs)


def _add_epoch_cost(
    spec: JobSpec, before: State, own: State, index: int, observation: Observation
) -> None:
    """Add the cost of an epoch to what is known of the hardware."""
    epochs, cost = observation.epochs, observation.cost
    if not epochs and observation.result == "early_stopped":
        bound = InformationDirectedPolicy().cost_bound(spec, before, observation.hardware)
        cost = max(cost, bound) if math.isfinite(bound) else cost
    elif not epochs and observation.result != "converged":
        return
    if cost < LEAST_COST:
        return
    log_cost = reproducible(math.log(cost / max(epochs, 1)))
    before_own = _own(spec, before, observation.hardware)["epoch_cost"]
    if curve.is_known(before_own):
        posterior = infer_own(spec, before, observation.hardware)
        if curve.has_drifted(own["epoch_cost"], posterior, index, log_cost):
            curve.forget(own["epoch_cost"])
    curve.add(own["epoch_cost"], index, log_cost)


def infer_own(spec, state, hardware):
    from zeus_service.bandit.cost_model import epoch_cost_posterior

    curves = {key: own["epoch_cost"] for key, own in state["hardware"].items()}
    return epoch_cost_posterior(spec, curves, hardware.key)


def _add_failure(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    if observation.result == "out_of_memory":
        own = _own(spec, state, observation.hardware)
        own["out_of_memory"][index] += 1
        own["out_of_memory_in_a_row"][index] += 1
        return
    posterior = epochs_posterior(spec, before["epochs"])
    if observation.result != "early_stopped" or posterior is None:
        state["failed"][index] += 1
        state["hard_failures"][index] += 1
        return
    if state["ever_converged"][index]:
        state["stops_in_a_row"] += 1
    # The run had not reached its target after these epochs.
    log_epochs = reproducible(math.log(observation.epochs + 0.5))
    never, rate = (float(each[index]) for each in _failing(spec, before, observation.hardware))
    failing = never + (1 - never) * rate
    slow = (1 - failing) * max(posterior.exceeds(index, log_epochs), 1e-9)
    failure = reproducible(failing / (failing + slow))
    state["failed"][index] += failure
    curve.add_stopped(state["epochs"], index, log_epochs, 1 - failure)


def _forget_epochs(state: State) -> None:
    """Forget the epochs; keep which batch sizes have never converged.

    Of those that have, also forget the failures: since the change, runs may have been just slow.
    """
    curve.forget(state["epochs"])
    pairs = zip(state["failed"], state["ever_converged"], strict=True)
    state["failed"] = [0.0 if ever else failed for failed, ever in pairs]
