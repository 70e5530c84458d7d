"""The policy of the Zeus paper: pruning rounds, then Gaussian Thompson sampling.

Source: Zeus (You, Chung, Chowdhury, NSDI 2023), section 4.

**Pruning.** A round tries the batch size it starts from, then the smaller candidates one after the
other, then the larger ones; each direction ends at its first failure. Those that converged are the
candidates of the next round, which starts from the one with the lowest cost in the round before, as
in the Zeus project's server. If none converges, those that have ever converged stay: one lucky run
in an earlier round must not end the job.

**Sampling.** After the last round, each candidate is an arm. With `n` costs of mean `m` and
variance `v`, the posterior of its expected reward, the negative cost, is normal with

    precision = prior_precision + n / v
    mean = (prior_precision * prior_mean - n / v * m) / precision

and the arm with the largest draw is taken. Arms with fewer than `mab_num_explorations` costs go
first, in random order; an arm that has not converged by then is given up.

**Overlap.** A trial that starts while an exploration is running is a concurrent one: it gets the
cheapest batch size known. It counts for its arm and for the early-stop bound but, as in the Zeus
project's server, not for the round. That server's cheapest is the one of the cheapest run, even if
this run has failed; here it is the lowest mean of those that converged and are still candidates.
"""

import math
from collections.abc import Collection, Container, Iterator
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    Moments,
    NoBatchSizeLeft,
    Observation,
    State,
    counted,
)
from zeus_service.bandit.spec import Hardware, JobSpec

_NEW_ARM: dict[str, Any] = {
    "count": 0,  # number of costs in the moments
    "mean": 0.0,
    "m2": 0.0,
    "converged": 0,  # number of those whose runs converged
    "ever_converged": False,  # also before the window
    "lowest": None,  # lowest cost of a run that converged
    "failure": None,  # result of the latest failure
    "recent": [],  # the latest `window_size` of [cost, converged]; empty without a window
}
_FINISHED = ("converged", "early_stopped", "not_converged")
"""Results that follow from a report; the Zeus project's server takes costs from these."""


class ZeusPolicy:
    """The NSDI 2023 policy; see the module's docstring."""

    name = "zeus"

    def initial_state(self, spec: JobSpec) -> State:
        """Round 1, from the default batch size, with all as candidates."""
        return {
            "round": 1,  # of pruning; larger than `num_pruning_rounds` while sampling
            "start": spec.default_batch_size,  # where the round starts
            "candidates": spec.batch_sizes,  # of the round, or the arms; ascending
            "tried": {},  # {batch size: whether it converged} in this round
            "costs": {},  # {batch size: cost} of those that converged in this round
            "exploring": {},  # {batch size: number of explorations running}
            "arms": {},  # {batch size: arm}, see `_NEW_ARM`
            # If `early_stop` is `spent`, also "lowest", the lowest cost of any finished run.
        }

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """The round's next batch size, or a draw from the arms."""
        candidates = [b for b in state["candidates"] if b in usable]
        if not candidates:
            raise NoBatchSizeLeft
        if not _sampling(spec, state):
            pending = _pending(state, usable)
            if pending is None:  # what is left of the round is unusable
                best = self.best_batch_size(spec, state, hardware)
                if best is not None and best in usable:
                    return Choice(best, "exploit")
                left = [b for b in _in_turn(state) if b in usable]
                if not left:
                    raise NoBatchSizeLeft
                return Choice(min(left, key=lambda b: abs(b - state["start"])), "concurrent")
            if str(pending) in state["exploring"]:
                return Choice(
                    self._while_exploring(spec, state, hardware, pending, usable), "concurrent"
                )
            return Choice(pending, "explore")

        needed = _explorations_needed(spec)
        short = [b for b in candidates if _arm(state, b)["count"] < needed]
        free = [
            b for b in short if _arm(state, b)["count"] + state["exploring"].get(str(b), 0) < needed
        ]
        if free:
            return Choice(int(rng.choice(free)), "explore")
        if short:
            return Choice(
                self._while_exploring(spec, state, hardware, short[0], usable), "concurrent"
            )
        draws = [rng.normal(*_posterior(spec, _arm(state, b))) for b in candidates]
        return Choice(candidates[int(np.argmax(draws))], "exploit")

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """Count a running exploration; other choices leave the state as it is."""
        return _count_exploring(state, choice, 1)

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add the cost to the arm, and end the round if it has nothing left to try."""
        state = _count_exploring(state, observation.choice, -1)
        if observation.result is None:
            return state
        batch_size = observation.choice.batch_size
        converged = observation.result == "converged"
        cost = observation.cost if converged else self._cost_of_failure(spec, state, observation)
        arm = _add(_arm(state, batch_size), cost, converged, spec.window_size)
        if not converged:
            arm["failure"] = observation.result
        state = {**state, "arms": {**state["arms"], str(batch_size): arm}}
        if spec.early_stop == "spent" and observation.result in _FINISHED and observation.cost:
            state = {**state, "lowest": min(observation.cost, state.get("lowest", math.inf))}

        if observation.result == "out_of_memory":
            state = _give_up_from(state, batch_size)
        elif _sampling(spec, state):
            if arm["count"] >= _explorations_needed(spec) and not arm["ever_converged"]:
                state = {**state, "candidates": [b for b in state["candidates"] if b != batch_size]}
        elif batch_size in state["candidates"] and observation.choice.why == "explore":
            # The first result in a round stands, even from a trial that began before the round.
            if converged and str(batch_size) not in state["tried"]:
                state = {**state, "costs": {**state["costs"], str(batch_size): cost}}
            state = {**state, "tried": {str(batch_size): converged, **state["tried"]}}
        while not _sampling(spec, state) and (candidates := state["candidates"]):
            if _pending(state, candidates) is not None:
                break
            state = _next_round(state)
        if not state["candidates"]:
            # Sample those that were given up, or converged only after all others had failed.
            known = [b for b in spec.batch_sizes if _arm(state, b)["ever_converged"]]
            state = {**state, "round": spec.num_pruning_rounds + 1, "candidates": known}
        return state

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """`beta_knob` times the lowest cost of any run that converged, if the meter counted any.

        With a window, only the runs within it count, and only of candidates: the window of the
        other batch sizes no longer moves. If `early_stop` is `spent`, as with the Zeus project's
        server, all runs that a report ended count, whatever the window.
        """
        if spec.beta_knob is None:
            return math.inf
        if spec.early_stop == "spent":
            return float(spec.beta_knob * state.get("lowest", math.inf))
        lowest = [
            arm["lowest"]
            for batch_size, arm in state["arms"].items()
            if arm["lowest"] and (not spec.window_size or int(batch_size) in state["candidates"])
        ]
        return float(spec.beta_knob * min(lowest, default=math.inf))

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """The lowest mean cost among the candidates that converged."""
        known = [b for b in state["candidates"] if _alive(state, b) and _arm(state, b)["converged"]]
        return min(known, key=lambda b: _arm(state, b)["mean"], default=None)

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """Mean cost and its standard error for every batch size."""
        estimates = []
        for batch_size in spec.batch_sizes:
            arm = _arm(state, batch_size)
            count, failure = arm["count"], arm["failure"] or "pruned"
            alive = batch_size in state["candidates"] and _alive(state, batch_size)
            mean = arm["mean"] if count else None
            spread = math.sqrt(arm["m2"] / count / count) if count > 1 else None
            status = "alive" if alive else failure
            estimates.append(ArmEstimate(batch_size, count, mean, spread, status))
        return estimates

    def _while_exploring(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        pending: int,
        usable: Container[int],
    ) -> int:
        best = self.best_batch_size(spec, state, hardware)
        if best is not None and best in usable:
            return best
        default = spec.default_batch_size
        free = default in state["candidates"] and _alive(state, default) and default in usable
        return default if free else pending

    def _cost_of_failure(self, spec: JobSpec, state: State, observation: Observation) -> float:
        """The cost that a failed run counts with: one that diverges at once is not cheap."""
        bound = self.cost_bound(spec, state, observation.hardware)
        if math.isinf(bound):
            bound = max((arm["mean"] for arm in state["arms"].values()), default=0.0)
        return max(observation.cost, bound)


def _explorations_needed(spec: JobSpec) -> int:
    """Number of costs that an arm needs before it is sampled; no more than fit the window."""
    return max(1, min(spec.mab_num_explorations, spec.window_size or spec.mab_num_explorations))


def _sampling(spec: JobSpec, state: State) -> bool:
    return bool(state["round"] > spec.num_pruning_rounds)


def _pending(state: State, usable: Container[int]) -> int | None:
    """The usable batch size that the round tries next; None at its end."""
    untried = (b for b in _in_turn(state) if str(b) not in state["tried"] and b in usable)
    return next(untried, None)


def _in_turn(state: State) -> Iterator[int]:
    """The batch sizes of the round, down and then up from its start, each until one has failed."""
    down = [b for b in reversed(state["candidates"]) if b <= state["start"]]
    up = [b for b in state["candidates"] if b > state["start"]]
    for direction in (down, up):
        yield from takewhile(partial(_alive, state), direction)


def _next_round(state: State) -> State:
    survivors = [b for b in state["candidates"] if state["tried"].get(str(b))]
    if not survivors:
        survivors = [b for b in state["candidates"] if _arm(state, b)["ever_converged"]]

    def cost(batch_size: int) -> float:
        return float(state["costs"].get(str(batch_size), _arm(state, batch_size)["mean"]))

    return {
        **state,
        "round": state["round"] + 1,
        "start": min(survivors, key=cost, default=state["start"]),
        "candidates": survivors,
        "tried": {},
        "costs": {},
    }


def _give_up_from(state: State, batch_size: int) -> State:
    """Give up a batch size that ran out of memory, and all larger ones.

    If no smaller one has converged, the larger ones that have stay: something else took the memory.
    If no smaller one is left, so does the batch size itself if it has converged.
    """
    candidates = [b for b in state["candidates"] if b < batch_size]
    if not any(_arm(state, b)["ever_converged"] for b in candidates):
        least = batch_size + 1 if candidates else batch_size
        larger = [b for b in state["candidates"] if b >= least]
        candidates += [b for b in larger if _arm(state, b)["ever_converged"]]
    return {
        **state,
        "candidates": candidates,
        "tried": {b: ok for b, ok in state["tried"].items() if int(b) in candidates},
        "start": min(state["start"], max(candidates, default=state["start"])),
    }


def _count_exploring(state: State, choice: Choice, step: int) -> State:
    if choice.why != "explore":
        return state
    return {**state, "exploring": counted(state["exploring"], choice.batch_size, step)}


def _arm(state: State, batch_size: int) -> dict[str, Any]:
    arm: dict[str, Any] = state["arms"].get(str(batch_size), _NEW_ARM)
    return arm


def _alive(state: State, batch_size: int) -> bool:
    return bool(state["tried"].get(str(batch_size), True))


def _add(arm: dict[str, Any], cost: float, converged: bool, window_size: int) -> dict[str, Any]:
    """Add a cost to an arm; with a window, only the latest costs count."""
    if window_size:
        recent, start = [*arm["recent"], [cost, converged]][-window_size:], _NEW_ARM
    else:
        recent, start = [], arm
    moments = Moments(start["count"], start["mean"], start["m2"])
    successes, lowest = start["converged"], start["lowest"]
    for value, success in recent or [[cost, converged]]:
        moments = moments.add(value)
        if success:
            successes += 1
            lowest = value if lowest is None else min(lowest, value)
    return {
        **arm,
        **vars(moments),  # count, mean and m2
        "converged": successes,
        "ever_converged": arm["ever_converged"] or converged,
        "lowest": lowest,
        "recent": recent,
    }


def _posterior(spec: JobSpec, arm: dict[str, Any]) -> tuple[float, float]:
    """Mean and standard deviation of the expected reward, the negative cost in joules."""
    variance = arm["m2"] / arm["count"]
    if variance < 1e-300:  # its inverse would be infinite
        return -arm["mean"], 0.0
    data_precision = arm["count"] / variance
    precision = spec.mab_prior_precision + data_precision
    weighted = spec.mab_prior_precision * spec.mab_prior_mean - data_precision * arm["mean"]
    return weighted / precision, precision**-0.5
