"""The policy of the Zeus paper: pruning rounds, then Gaussian Thompson sampling.

Source: Zeus (You, Chung, Chowdhury, NSDI 2023), section 4.

**Pruning.** A round tries its candidates one after the other: first the batch size it starts from,
then smaller ones, then larger ones. Each direction ends at its first failure. Whoever converged
survives; the next round has the survivors for candidates and starts from the cheapest of them.
When a later round would leave nobody, its candidates stay: they have converged before, and one run
that was lucky in an early round must not end the job.

**Sampling.** After the last round, each survivor is an arm. With `n` costs of mean `m` and
variance `v`, the belief about its expected reward (the negative cost) is normal with

    precision = prior_precision + n / v
    mean = (prior_precision * prior_mean - n / v * m) / precision

and the arm with the largest draw is taken. An arm with fewer than `mab_num_explorations` costs goes
first, in random order; one that has never converged by then is given up.

**Overlap.** While an exploration is running, a further start gets the cheapest batch size known.

The state, a JSON object:

    round        the pruning round, from 1; one more than `num_pruning_rounds` means sampling
    start        where the round starts
    candidates   the round's batch sizes, ascending; when sampling, the arms
    tried        {batch size: whether it converged} in this round
    exploring    {batch size: explorations running}
    arms         {batch size: {count, mean, m2, converged, ever_converged, lowest,
                 failure, recent}}
    lowest       the lowest cost of any finished run, converged or not; only where it is the
                 measure of the early-stop bound (`early_stop` is `spent`)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zeus_service.policies.base import (
    ArmEstimate,
    Choice,
    Moments,
    NoBatchSizeLeft,
    Observation,
    State,
)
from zeus_service.spec import JobSpec

_NEW_ARM: dict[str, Any] = {
    "count": 0,  # costs that the moments are of
    "mean": 0.0,
    "m2": 0.0,
    "converged": 0,  # how many of them are of runs that converged
    "ever_converged": False,  # also before the window
    "lowest": None,  # the lowest of those
    "failure": None,  # verdict of the latest failure
    "recent": [],  # [cost, converged], the latest `window_size`; empty without a window
}


_FINISHED = ("converged", "early_stopped", "not_converged")
"""Verdicts that a report ends a run with: what the Zeus project's server takes costs from."""


class ZeusPolicy:
    """The NSDI 2023 policy; see the module's text."""

    name = "zeus"

    def initial_state(self, spec: JobSpec) -> State:
        """Round 1, from the default, over all batch sizes."""
        return {
            "round": 1,
            "start": spec.default_batch_size,
            "candidates": spec.batch_sizes,
            "tried": {},
            "exploring": {},
            "arms": {},
        }

    def next_batch_size(self, spec: JobSpec, state: State, rng: np.random.Generator) -> Choice:
        """The round's next batch size, or a draw from the arms."""
        if not state["candidates"]:
            raise NoBatchSizeLeft
        if not _sampling(spec, state):
            pending = _pending(state)
            assert pending is not None, "observe() ends a round that has nothing left to try"
            if str(pending) in state["exploring"]:
                return Choice(self._while_exploring(spec, state, pending), "concurrent")
            return Choice(pending, "explore")

        needed = _explorations_needed(spec)
        short = [b for b in state["candidates"] if _arm(state, b)["count"] < needed]
        free = [
            b for b in short if _arm(state, b)["count"] + state["exploring"].get(str(b), 0) < needed
        ]
        if free:
            return Choice(int(rng.choice(free)), "explore")
        if short:
            return Choice(self._while_exploring(spec, state, short[0]), "concurrent")
        draws = [rng.normal(*_belief(spec, _arm(state, b))) for b in state["candidates"]]
        return Choice(state["candidates"][int(np.argmax(draws))], "exploit")

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """Note a running exploration; other choices leave the state as it is."""
        del spec
        return _count_exploring(state, choice, 1)

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add the cost to the arm, and end the round when nothing is left to try in it."""
        state = _count_exploring(state, observation.choice, -1)
        if observation.verdict is None:
            return state
        batch_size = observation.choice.batch_size
        converged = observation.verdict == "converged"
        cost = observation.cost if converged else self._cost_of_failure(spec, state, observation)
        arm = _add(_arm(state, batch_size), cost, converged, spec.window_size)
        if not converged:
            arm["failure"] = observation.verdict
        state = {**state, "arms": {**state["arms"], str(batch_size): arm}}
        if spec.early_stop == "spent" and observation.verdict in _FINISHED and observation.cost:
            lowest = min(observation.cost, state.get("lowest", math.inf))
            state = {**state, "lowest": lowest}

        if observation.verdict == "out_of_memory":
            state = _give_up_from(state, batch_size)
        elif converged and not state["candidates"]:
            # It was still running when all others had failed.
            state = {**state, "round": spec.num_pruning_rounds + 1, "candidates": [batch_size]}
        elif _sampling(spec, state):
            if arm["count"] >= _explorations_needed(spec) and not arm["ever_converged"]:
                state = {**state, "candidates": [b for b in state["candidates"] if b != batch_size]}
        elif batch_size in state["candidates"]:
            # The first verdict of a round stands, whichever trial it comes from.
            state = {**state, "tried": {str(batch_size): converged, **state["tried"]}}
        while not _sampling(spec, state) and state["candidates"] and _pending(state) is None:
            state = _next_round(state)
        return state

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """`beta_knob` times the lowest cost of any run that converged.

        With a window, only the runs within it count, of batch sizes that are still tried: the
        window of the others stands still. A cost of zero is a meter that does not count.

        With the `early_stop` of the Zeus project's server, `spent`, every run counts that was
        stopped by its reports, converged or not, whatever the window.
        """
        if spec.early_stop == "spent" and spec.beta_knob is not None:
            return float(spec.beta_knob * state.get("lowest", math.inf))
        arms = [
            arm
            for batch_size, arm in state["arms"].items()
            if not spec.window_size or int(batch_size) in state["candidates"]
        ]
        lowest = [arm["lowest"] for arm in arms if arm["lowest"]]
        if spec.beta_knob is None or not lowest:
            return math.inf
        return float(spec.beta_knob * min(lowest))

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """The batch size of the lowest mean cost among those that converged and are alive."""
        del spec
        known = [b for b in state["candidates"] if _alive(state, b) and _arm(state, b)["converged"]]
        return min(known, key=lambda b: _arm(state, b)["mean"], default=None)

    def stage(self, spec: JobSpec, state: State) -> str:
        """`pruning 1/2`, `sampling`, or `exhausted` when every batch size has failed."""
        if not state["candidates"]:
            return "exhausted"
        if _sampling(spec, state):
            return "sampling"
        return f"pruning {state['round']}/{spec.num_pruning_rounds}"

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """Mean cost and its standard error for every batch size."""
        return [_estimate(state, batch_size) for batch_size in spec.batch_sizes]

    def _while_exploring(self, spec: JobSpec, state: State, pending: int) -> int:
        best = self.best_batch_size(spec, state)
        if best is not None:
            return best
        default = spec.default_batch_size
        return default if default in state["candidates"] and _alive(state, default) else pending

    def _cost_of_failure(self, spec: JobSpec, state: State, observation: Observation) -> float:
        """What a failed run would at least have cost: a run that diverges at once is not cheap."""
        bound = self.cost_bound(spec, state)
        if math.isinf(bound):
            bound = max((arm["mean"] for arm in state["arms"].values()), default=0.0)
        return max(observation.cost, bound)


def _explorations_needed(spec: JobSpec) -> int:
    """Verdicts that an arm needs before it is sampled; a window cannot hold more than its size."""
    return max(1, min(spec.mab_num_explorations, spec.window_size or spec.mab_num_explorations))


def _sampling(spec: JobSpec, state: State) -> bool:
    return bool(state["round"] > spec.num_pruning_rounds)


def _pending(state: State) -> int | None:
    """The batch size the round tries next; None when the round is over."""
    down = [b for b in reversed(state["candidates"]) if b <= state["start"]]
    up = [b for b in state["candidates"] if b > state["start"]]
    for direction in (down, up):
        for batch_size in direction:
            converged = state["tried"].get(str(batch_size))
            if converged is None:
                return int(batch_size)
            if not converged:
                break
    return None


def _next_round(state: State) -> State:
    survivors = [b for b in state["candidates"] if state["tried"].get(str(b))]
    if not survivors and state["round"] > 1:
        survivors = state["candidates"]
    start = min(survivors, key=lambda b: _arm(state, b)["mean"], default=state["start"])
    return {
        **state,
        "round": state["round"] + 1,
        "start": start,
        "candidates": survivors,
        "tried": {},
    }


def _give_up_from(state: State, batch_size: int) -> State:
    """Give up a batch size that does not fit the memory, and all larger ones.

    Not the last ones that have ever converged: they fit, and something else took the memory.
    """
    candidates = [b for b in state["candidates"] if b < batch_size]
    if not candidates:
        candidates = [b for b in state["candidates"] if _arm(state, b)["ever_converged"]]
    return {
        **state,
        "candidates": candidates,
        "tried": {b: right for b, right in state["tried"].items() if int(b) in candidates},
        "start": min(state["start"], max(candidates, default=state["start"])),
    }


def _count_exploring(state: State, choice: Choice, step: int) -> State:
    if choice.why != "explore":
        return state
    exploring = dict(state["exploring"])
    key = str(choice.batch_size)
    running = exploring.pop(key, 0) + step
    if running > 0:
        exploring[key] = running
    return {**state, "exploring": exploring}


def _arm(state: State, batch_size: int) -> dict[str, Any]:
    arm: dict[str, Any] = state["arms"].get(str(batch_size), _NEW_ARM)
    return arm


def _alive(state: State, batch_size: int) -> bool:
    return bool(state["tried"].get(str(batch_size), True))


def _add(arm: dict[str, Any], cost: float, converged: bool, window_size: int) -> dict[str, Any]:
    """The arm with one more cost; with a window, only its latest costs count."""
    if window_size:
        recent = [*arm["recent"], [cost, converged]][-window_size:]
        start = {**_NEW_ARM, "failure": arm["failure"]}
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
        "count": moments.count,
        "mean": moments.mean,
        "m2": moments.m2,
        "converged": successes,
        "ever_converged": arm["ever_converged"] or converged,
        "lowest": lowest,
        "failure": start["failure"],
        "recent": recent,
    }


def _belief(spec: JobSpec, arm: dict[str, Any]) -> tuple[float, float]:
    """Mean and standard deviation of the expected reward, the negative cost in joules."""
    moments = Moments(arm["count"], arm["mean"], arm["m2"])
    if moments.variance < 1e-300:  # its inverse would be infinite
        return -moments.mean, 0.0
    data_precision = moments.count / moments.variance
    precision = spec.mab_prior_precision + data_precision
    mean = (spec.mab_prior_precision * spec.mab_prior_mean - data_precision * moments.mean) / (
        precision
    )
    return mean, precision**-0.5


def _estimate(state: State, batch_size: int) -> ArmEstimate:
    arm = _arm(state, batch_size)
    moments = Moments(arm["count"], arm["mean"], arm["m2"])
    if batch_size in state["candidates"] and _alive(state, batch_size):
        status = "alive"
    else:
        status = arm["failure"] or "pruned"
    return ArmEstimate(
        batch_size=batch_size,
        pulls=arm["count"],
        mean=arm["mean"] if arm["count"] else None,
        spread=moments.standard_error if arm["count"] > 1 else None,
        status=status,
    )
