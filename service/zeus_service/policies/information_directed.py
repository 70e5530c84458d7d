"""Information-directed sampling over a valley of costs.

**What is believed.** How much a run costs that converges: see `cost_model.py`. Whether it does, by
batch size `i`: of `a + s` tries `s` failed (a Beta posterior). Neighbours count with half their
weight per octave, and a failure beyond all that has ever converged counts in full further out, but
all neighbours together for no more than two tries. A run that was stopped was either slow or would
never have converged: it counts as a failure with the probability of the latter.

**Which batch size next.** With `regret[i]` what is expected to be lost by trying `i` now instead of
the best one, retries and early stops included, and `information[i]` what its cost is expected to
tell about which one is best, the batch size of the smallest

    regret[i]^2.5 / information[i],    information[i] = log(1 + v[i] / sigma^2)

is taken: `v[i]` is the variance, over which batch size is the best, of the expected log cost of
`i` given that. All are estimated from draws of the belief. Exploration ends by itself when no cost
would change the choice; no horizon need be known. Source: Russo and Van Roy, "Learning to optimize
via information-directed sampling", Operations Research 66(1), 2018, where the exponent is 2 and two
actions are mixed.

**Overlap.** A run in flight on `i` has already asked: a further one gets what is left,
`log(1 + (k + 1) v / sigma^2) - log(1 + k v / sigma^2)` with `k` in flight. Until something has
converged, all get the default, or what is nearest to it and has failed least.

**When a run is stopped.** At `beta_knob` times the believed cost of the best batch size, which one
lucky run does not lower; but not within two standard deviations of what the best one may cost.
When runs that ought to converge are stopped one after the other, the bound doubles each time after
the first: a job that has become slower for good finishes again.

**Drift.** Costs of batch sizes tried before are compared with what was expected of them, in a
two-sided cumulative sum (Page, "Continuous inspection schemes", Biometrika 41, 1954). When it says
that the job has changed, costs are forgotten, and exploration starts anew. With a `window_size`,
moreover, what is older counts less: by the factor `1 - 1 / window_size` for each later verdict.

The state, a JSON object; lists have an entry per batch size:

    weight, level       number of costs and mean of their logarithms
    stopped, stopped_level   the same of runs that were stopped as too slow
    scatter, freedom    squared deviations of the logarithms, and how many
    converged, failed   tries that did and did not, the latter in fractions
    pulls               verdicts
    ever_converged, hard_failures, failure    the last one's verdict
    fits, too_large     largest batch size that converged, smallest that ran out of memory
    running             {batch size: trials running}
    cusum               [dearer, cheaper]
    stops_in_a_row      of batch sizes that have converged before
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from zeus_service.policies.base import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    State,
    Why,
)
from zeus_service.policies.cost_model import (
    LEAST_WEIGHT,
    Belief,
    Evidence,
    Floats,
    believe,
    normal_cdf,
)
from zeus_service.spec import JobSpec

DRAWS = 256
CAUTION = 2.5
"""The exponent of regret; 2 in the source. More explores less, and nearer to what is known."""
FAILURES, SUCCESSES = 0.1, 0.9
"""Of a batch size before it is tried: one try in all."""
NEIGHBOURS = 2.0
"""For how many tries all other batch sizes count together."""
FAILURES_TO_GIVE_UP = 2
LEAST_COST = 1e-300
"""In joules; less is a meter that does not count."""
COST_OF_FAILURE = 4.0
"""Of a run that fails without an early stop, in costs of the best batch size."""
GRACE = 2.0
"""Standard deviations that a run of the best batch size is given before it is stopped."""
SLACK, ALARM, LARGEST_SURPRISE = 0.75, 5.0, 4.0
"""Of the cumulative sum, in standard deviations; one surprise alone is no alarm."""


class InformationDirectedPolicy:
    """The smallest squared regret per information; see the module's text."""

    name = "information_directed"

    def initial_state(self, spec: JobSpec) -> State:
        """Nothing has been seen."""
        count = len(spec.batch_sizes)
        return {
            "weight": [0.0] * count,
            "level": [0.0] * count,
            "stopped": [0.0] * count,
            "stopped_level": [0.0] * count,
            "scatter": 0.0,
            "freedom": 0.0,
            "converged": [0.0] * count,
            "failed": [0.0] * count,
            "pulls": [0] * count,
            "ever_converged": [False] * count,
            "hard_failures": [0] * count,
            "failure": [None] * count,
            "fits": 0,
            "too_large": None,
            "running": {},
            "cusum": [0.0, 0.0],
            "stops_in_a_row": 0,
        }

    def next_batch_size(self, spec: JobSpec, state: State, rng: np.random.Generator) -> Choice:
        """The batch size that loses least for what it teaches."""
        alive = np.flatnonzero(_alive(spec, state))
        if not alive.size:
            raise NoBatchSizeLeft
        belief = _belief(spec, state)
        if belief is None:
            why: Why = "concurrent" if state["running"] else "explore"
            return Choice(_near_the_default(spec, state, alive), why)
        outlook = _Outlook(spec, state, belief)
        best = outlook.best(alive)
        draws = belief.draw(DRAWS, rng).T + outlook.log_retries[:, None]
        log_costs = np.ascontiguousarray(draws)[alive]  # (alive, DRAWS)
        lowest = log_costs.min(axis=0)
        lost_to_ignorance = outlook.log_cost[best] - lowest.mean()
        cost_now = outlook.cost_now()
        regret = cost_now[alive] - cost_now[best] + lost_to_ignorance
        told = _variance_over_which_is_best(log_costs, lowest) / belief.noise_variance
        running = np.array([state["running"].get(str(b), 0) for b in spec.batch_sizes])[alive]
        information = np.log1p((running + 1) * told) - np.log1p(running * told)
        ratio = np.maximum(regret, 0) ** CAUTION / np.maximum(information, 1e-9)
        chosen = alive[np.argmin(ratio)]
        return Choice(spec.batch_sizes[chosen], "exploit" if chosen == best else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """Note a running trial."""
        del spec
        return _count_running(state, choice, 1)

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add what the trial's end says about its batch size."""
        state = _count_running(state, observation.choice, -1)
        if observation.verdict is None:
            return state
        index = spec.batch_sizes.index(observation.choice.batch_size)
        before = state
        state = _older(spec, state)
        state["pulls"][index] += 1
        if observation.verdict == "converged":
            _add_convergence(spec, before, state, index, observation)
        else:
            state["failure"][index] = observation.verdict
            _add_failure(spec, before, state, index, observation)
        return state

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """`beta_knob` times the believed cost of the best batch size, or a little more."""
        belief = _belief(spec, state)
        if spec.beta_knob is None or belief is None:
            return math.inf
        return math.exp(min(_log_bound(spec, state, belief), 700.0))

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """The lowest expected cost, retries included, among those that have converged."""
        belief = _belief(spec, state)
        if belief is None:
            return next((b for b, ever in _pairs(spec, state["ever_converged"]) if ever), None)
        alive = np.flatnonzero(_alive(spec, state))
        best: int = spec.batch_sizes[_Outlook(spec, state, belief).best(alive)]
        return best

    def stage(self, spec: JobSpec, state: State) -> str:
        """`starting` until a run has converged, then `learning`; `exhausted` when all failed."""
        if not _alive(spec, state).any():
            return "exhausted"
        return "learning" if any(state["ever_converged"]) else "starting"

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """The expected cost of a run that converges and its deviation, also where none was tried.

        The expectation of a log-normal cost: the mean of `exp(f + noise)`.
        """
        belief = _belief(spec, state)
        alive = _alive(spec, state)
        arms = []
        for index, batch_size in enumerate(spec.batch_sizes):
            mean = spread = None
            if belief is not None:
                variance = min(float(belief.variance[index]), 100.0)
                log_mean = belief.mean[index] + (variance + belief.noise_variance) / 2
                mean = math.exp(log_mean)
                spread = mean * math.sqrt(math.expm1(variance))
            arms.append(
                ArmEstimate(
                    batch_size=batch_size,
                    pulls=state["pulls"][index],
                    mean=mean,
                    spread=spread,
                    status="alive" if alive[index] else _why_dead(spec, state, index),
                )
            )
        return arms


class _Outlook:
    """What the belief means for the next try, in costs of the best batch size.

    Attributes:
        failing: (n,), the probability that a try fails for another reason than its cost.
        log_retries: (n,), what retries add to the log cost of using a batch size for good.
        log_cost: (n,), the expected log cost of using it for good.
    """

    def __init__(self, spec: JobSpec, state: State, belief: Belief) -> None:
        self._belief = belief
        self._ever = np.array(state["ever_converged"])
        self.failing = _failing(spec, state)
        self._log_unit = float(belief.mean[self._ever].min())
        self._log_bound = math.inf
        if spec.beta_knob is not None:
            self._log_bound = _log_bound(spec, state, belief) - self._log_unit
        self._failure = math.exp(min(self._log_bound, math.log(COST_OF_FAILURE)))
        self.log_retries = np.log1p(self.failing / (1 - self.failing) * self._failure)
        self.log_cost = belief.mean + self.log_retries

    def best(self, alive: np.ndarray[Any, Any]) -> int:
        """The index of the cheapest one that has ever converged and is alive."""
        known = alive[self._ever[alive]]
        return int(known[np.argmin(self.log_cost[known])])

    def cost_now(self) -> Floats:
        """(n,), the expected cost of a try, and of a retry with the best one if it fails."""
        deviation = self._belief.run_deviations
        log_cost = self._belief.means - self._log_unit
        cost = np.exp(np.minimum(log_cost + deviation**2 / 2, 30))
        retry = math.exp(self._belief.noise_variance / 2)
        if math.isfinite(self._log_bound):
            # The mean of a log-normal cost that is cut off at the bound.
            bound = math.exp(min(self._log_bound, 30))
            stops = normal_cdf((log_cost - self._log_bound) / deviation)
            below = normal_cdf((self._log_bound - log_cost - deviation**2) / deviation)
            cost = cost * below + (bound + retry) * stops
        tried: Floats = self._belief.share @ cost
        return (1 - self.failing) * tried + self.failing * (self._failure + retry)


def _variance_over_which_is_best(log_costs: Floats, lowest: Floats) -> Floats:
    """(n,), the variance of each batch size's mean over draws grouped by which one is the best.

    Means of few draws vary by themselves; correcting for that explores less, and loses by it.

    Args:
        log_costs: (n, draws).
        lowest: (draws,), the lowest of each draw.
    """
    is_best = (log_costs == lowest).astype(float)
    times = is_best.sum(axis=1)
    mean_if_best = log_costs @ is_best.T / np.maximum(times, 1)
    variance: Floats = (mean_if_best - log_costs.mean(axis=1)[:, None]) ** 2 @ (times / len(lowest))
    return variance


def _belief(spec: JobSpec, state: State) -> Belief | None:
    """The belief about costs; None while none is known."""
    if max(state["weight"]) <= LEAST_WEIGHT:
        return None
    return believe(
        Evidence(
            batch_sizes=tuple(spec.batch_sizes),
            weight=tuple(state["weight"]),
            level=tuple(state["level"]),
            stopped=tuple(state["stopped"]),
            stopped_level=tuple(state["stopped_level"]),
            scatter=state["scatter"],
            freedom=state["freedom"],
        )
    )


def _log_bound(spec: JobSpec, state: State, belief: Belief) -> float:
    assert spec.beta_knob is not None
    ever = np.array(state["ever_converged"])
    best = np.flatnonzero(ever)[np.argmin(belief.mean[ever])]
    noise = belief.noise_variance
    mean = float(belief.mean[best])
    grace = GRACE * math.sqrt(noise + float(belief.variance[best]))
    doublings: int = max(0, state["stops_in_a_row"] - 1)
    bound = max(mean + noise / 2 + math.log(spec.beta_knob), mean + grace)
    return bound + doublings * math.log(2)


def _failing(spec: JobSpec, state: State) -> Floats:
    """(n,), the probability that a try of a batch size fails for another reason than its cost."""
    failed, converged = np.array(state["failed"]), np.array(state["converged"])
    share = _neighbourhood(tuple(spec.batch_sizes)).copy()
    ever = np.flatnonzero(state["ever_converged"])
    if ever.size:
        index = np.arange(len(failed))
        share_of_failures = share.copy()
        beyond = (index > ever[-1])[None, :] & (index[:, None] > index)
        beyond |= (index < ever[0])[None, :] & (index[:, None] < index)
        share_of_failures[beyond] = 1.0
    else:
        share_of_failures = share
    failed_near, converged_near = share_of_failures @ failed, share @ converged
    scale = NEIGHBOURS / np.maximum(failed_near + converged_near, NEIGHBOURS)
    failures = FAILURES + failed + scale * failed_near
    successes = SUCCESSES + converged + scale * converged_near
    failing: Floats = failures / (failures + successes)
    return failing


@lru_cache(maxsize=256)
def _neighbourhood(batch_sizes: tuple[int, ...]) -> Floats:
    """(n, n), how much a try of the second counts for the first; 0 for itself."""
    octave = np.log2(batch_sizes)
    share: Floats = 0.5 ** np.abs(octave[:, None] - octave)
    np.fill_diagonal(share, 0.0)
    return share


def _near_the_default(spec: JobSpec, state: State, alive: np.ndarray[Any, Any]) -> int:
    """The one that failed least, then the nearest to the default, then the smaller."""
    distance = np.abs(np.log2(np.array(spec.batch_sizes) / spec.default_batch_size))
    order = np.lexsort((distance[alive], np.array(state["failed"])[alive]))  # stable: ascending
    nearest: int = spec.batch_sizes[alive[order[0]]]
    return nearest


def _alive(spec: JobSpec, state: State) -> np.ndarray[Any, Any]:
    return np.array([_why_dead(spec, state, i) == "" for i in range(len(spec.batch_sizes))])


def _why_dead(spec: JobSpec, state: State, index: int) -> str:
    """Why a batch size is not tried any more; empty when it is."""
    if state["ever_converged"][index]:
        return ""  # once it converged: whatever happened since may be bad luck
    batch_size = spec.batch_sizes[index]
    if state["too_large"] is not None and batch_size >= max(state["too_large"], state["fits"] + 1):
        return "out_of_memory"
    if state["hard_failures"][index] >= FAILURES_TO_GIVE_UP:
        return str(state["failure"][index])
    return ""


def _older(spec: JobSpec, state: State) -> State:
    """A copy in which what was seen counts less, if there is a window."""
    kept = 1 - 1 / spec.window_size if spec.window_size else 1.0
    lists = {name: list(value) for name, value in state.items() if isinstance(value, list)}
    for name in ("weight", "stopped", "converged", "failed"):
        lists[name] = [kept * value for value in lists[name]]
    return {
        **state,
        **lists,
        "scatter": kept * state["scatter"],
        "freedom": kept * state["freedom"],
    }


def _add_convergence(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    state["stops_in_a_row"] = 0
    state["ever_converged"][index] = True
    state["converged"][index] += 1
    state["fits"] = max(state["fits"], observation.choice.batch_size)
    if observation.cost < LEAST_COST:
        return
    log_cost = math.log(observation.cost)
    if _surprised(spec, before, state, index, log_cost):
        _forget_costs(state)
    weight, level = state["weight"][index], state["level"][index]
    if weight > LEAST_WEIGHT:
        state["scatter"] += weight / (weight + 1) * (log_cost - level) ** 2
        state["freedom"] += weight / (weight + 1)
    state["weight"][index] = weight + 1
    state["level"][index] = level + (log_cost - level) / (weight + 1)


def _add_failure(
    spec: JobSpec, before: State, state: State, index: int, observation: Observation
) -> None:
    if observation.verdict == "out_of_memory" and not state["ever_converged"][index]:
        smallest = state["too_large"] or observation.choice.batch_size
        state["too_large"] = min(smallest, observation.choice.batch_size)
    belief = _belief(spec, before)
    if observation.verdict != "early_stopped" or belief is None:
        state["failed"][index] += 1
        state["hard_failures"][index] += 1
        return
    if state["ever_converged"][index]:
        state["stops_in_a_row"] += 1
    # Another epoch would have crossed the bound, and it did not reach the target before.
    log_cost = _log_bound(spec, before, belief) if spec.beta_knob else -math.inf
    log_cost = max(log_cost, math.log(max(observation.cost, LEAST_COST)))
    never = float(_failing(spec, before)[index])
    slow = (1 - never) * max(belief.exceeds(index, log_cost), 1e-9)
    # Rounded, so that a fold on another machine gives the same state.
    state["failed"][index] += round(never / (never + slow), 6)
    share = 1 - round(never / (never + slow), 6)
    if share > 0:
        stopped = state["stopped"][index] + share
        level = state["stopped_level"][index]
        state["stopped_level"][index] = level + (log_cost - level) * share / stopped
        state["stopped"][index] = stopped


def _surprised(spec: JobSpec, before: State, state: State, index: int, log_cost: float) -> bool:
    """Advance the cumulative sums; whether they say that the job has changed."""
    belief = _belief(spec, before)
    if belief is None or before["weight"][index] < 2:
        return False
    deviation = math.sqrt(belief.noise_variance + float(belief.variance[index]))
    surprise = (log_cost - float(belief.mean[index])) / deviation
    surprise = round(min(max(surprise, -LARGEST_SURPRISE), LARGEST_SURPRISE), 6)
    dearer, cheaper = state["cusum"]
    state["cusum"] = [max(0.0, dearer + surprise - SLACK), max(0.0, cheaper - surprise - SLACK)]
    return any(total > ALARM for total in state["cusum"])


def _forget_costs(state: State) -> None:
    """What a run costs must be learned anew; what has never converged, and the noise, stay known.

    Runs that were stopped since the job changed were rather slow than failures.
    """
    for name in ("weight", "level", "stopped", "stopped_level"):
        state[name] = [0.0] * len(state[name])
    pairs = zip(state["failed"], state["ever_converged"], strict=True)
    state["failed"] = [0.0 if ever else failed for failed, ever in pairs]
    state["cusum"] = [0.0, 0.0]


def _count_running(state: State, choice: Choice, step: int) -> State:
    running = dict(state["running"])
    key = str(choice.batch_size)
    count = running.pop(key, 0) + step
    if count > 0:
        running[key] = count
    return {**state, "running": running}


def _pairs(spec: JobSpec, values: list[Any]) -> list[tuple[int, Any]]:
    return list(zip(spec.batch_sizes, values, strict=True))
