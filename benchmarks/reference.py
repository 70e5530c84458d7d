"""A yardstick for policies: Bayesian, with one step of look-ahead, and well informed.

It knows the distribution of the family of synthetic workloads, but not of which kind a job is, and
how many recurrences are left; it does not know that jobs can change. Workloads are drawn with the
job's batch sizes and default, and weighted by the likelihood of the trials so far, in which the
offset and the roughness of the curve are integrated in closed form. The batch size is chosen for
which the cost of this recurrence and that of all to come, if nothing more was learned after this
one, is the lowest in expectation (the knowledge gradient: Frazier, Powell, Dayanik, "A
knowledge-gradient policy for sequential information collection", SIAM Journal on Control and
Optimization 47(5), 2008). It is slow, and no policy of the service.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zeus_service.policies.base import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    State,
)
from zeus_service.policies.cost_model import normal_cdf
from zeus_service.simulation import family
from zeus_service.spec import JobSpec

Floats = NDArray[np.float64]
PARTICLES = 6000
DRAWS = 256
LEAST = 1e-4
"""Of a probability, so that no trial excludes all workloads."""
CHANGING = ("dearer", "cheaper", "to_and_fro", "overlapping")
COSTS = ("weight", "mean", "converged", "out_of_memory", "failed", "stopped", "stopped_mean")


@dataclass(frozen=True)
class Particles:
    """Workloads of the family, with values for each batch size (p, n) or for all (p, 1)."""

    valley: Floats
    roughness: Floats
    noise: Floats
    never: Floats
    memory: Floats
    heavy: Floats


@lru_cache(maxsize=8)
def particles(sizes: tuple[int, ...], default: int) -> Particles:
    """Draw workloads of all kinds that do not change, with these batch sizes and this default."""
    rng = np.random.default_rng(7)
    kinds = [kind for kind in family.KINDS if kind not in CHANGING]
    if len(sizes) < 3:
        kinds = [kind for kind in kinds if kind not in ("cliff", "memory", "shared_memory")]
    rows: list[list[Any]] = [[], [], [], [], [], []]
    while len(rows[0]) < PARTICLES:
        kind = kinds[int(rng.integers(len(kinds)))]
        draft = family.draft_of(rng, list(sizes))
        family.KINDS[kind](draft, rng)
        if draft.sizes[draft.default] != default:
            continue
        roughness, draft.roughness = draft.roughness.std(), np.zeros(len(sizes))
        for row, value in zip(
            rows,
            (
                draft.valley(0.0),
                [roughness + 1e-3],
                [math.sqrt(math.log1p(draft.variation**2))],
                np.where(draft.fails, 1.0, draft.failing),
                draft.memory,
                [0.1 * draft.heavy_tail],
            ),
            strict=True,
        ):
            row.append(value)
    return Particles(*(np.array(row, dtype=float) for row in rows))


class ReferencePolicy:
    """The yardstick; `horizon` is the number of recurrences of the job."""

    name = "reference"

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon

    def initial_state(self, spec: JobSpec) -> State:
        """Counts and means of log costs for each batch size."""
        zeros = {name: [0.0] * len(spec.batch_sizes) for name in COSTS}
        return {**zeros, "squares": 0.0, "recurrences": 0}

    def next_batch_size(self, spec: JobSpec, state: State, rng: np.random.Generator) -> Choice:
        """The lowest cost of this recurrence and the others."""
        if not any(state["weight"]) and not self._hopeful(state).any():
            raise NoBatchSizeLeft
        log_cost, never, memory, noise = self._draws(spec, state, rng)
        lowest = float(np.exp(log_cost).mean(axis=0).min())
        failing = never + (1 - never) * memory
        # A failed run costs about twice the best one; a lack of memory costs a tenth of the run.
        cost, lost = np.exp(log_cost), 2 * lowest
        odds = np.minimum(never / np.maximum(1 - never, LEAST), 50)
        memory_odds = np.minimum(memory / np.maximum(1 - memory, LEAST), 50)
        always = cost * (1 + 0.1 * memory_odds) + odds * lost
        now = (1 - failing) * cost + (1 - memory) * never * lost + memory * 0.1 * cost
        means = always.mean(axis=0)
        best = int(np.argmin(means))
        now = now.mean(axis=0) + failing.mean(axis=0) * means[best]
        left = max(1, self._horizon - state["recurrences"] - 1)
        scores = []
        for index in range(len(spec.batch_sizes)):
            seen = log_cost[:, index] + noise[:, 0] * rng.standard_normal(DRAWS)
            likelihood = (1 - failing[:, index]) * np.exp(
                -0.5 * ((seen[:, None] - log_cost[:, index]) / noise[:, 0]) ** 2
            )
            likelihood = likelihood / noise[:, 0] + 1e-12
            np.fill_diagonal(likelihood, 0)  # a draw is no evidence of itself
            after = (likelihood / likelihood.sum(axis=1, keepdims=True)) @ always
            # What the choice made then saves, on the draw that was true: unbiased.
            chosen = np.argmin(after, axis=1)
            fails = failing[:, index]
            if_failed = int(np.argmin(fails @ always))
            saved = always[:, best] - (1 - fails) * always[np.arange(DRAWS), chosen]
            saved -= fails * always[:, if_failed]
            # Less its standard error: with many recurrences left, chance would look like a gain.
            gain = max(0.0, float(saved.mean() - saved.std() / math.sqrt(DRAWS)))
            scores.append(now[index] - left * gain)
        chosen_one = int(np.argmin(scores))
        return Choice(spec.batch_sizes[chosen_one], "exploit" if chosen_one == best else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """Nothing: trials do not overlap."""
        del spec, choice
        return state

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Count the trial."""
        index = spec.batch_sizes.index(observation.choice.batch_size)
        state = {k: list(v) if isinstance(v, list) else v for k, v in state.items()}
        log_cost = math.log(max(observation.cost, 1e-300))
        if observation.verdict == "converged":
            state["recurrences"] += 1
            state["converged"][index] += 1
            weight, mean = state["weight"][index], state["mean"][index]
            state["squares"] += weight / (weight + 1) * (log_cost - mean) ** 2
            state["weight"][index] = weight + 1
            state["mean"][index] = mean + (log_cost - mean) / (weight + 1)
        elif observation.verdict == "early_stopped":
            count = state["stopped"][index] = state["stopped"][index] + 1
            mean = state["stopped_mean"][index]
            state["stopped_mean"][index] = mean + (log_cost - mean) / count
        elif observation.verdict == "out_of_memory":
            state["out_of_memory"][index] += 1
        else:
            state["failed"][index] += 1
        return state

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """`beta_knob` times the lowest expected cost, and three deviations of a run."""
        if not any(state["weight"]) or spec.beta_knob is None:
            return math.inf
        log_cost, *_, noise = self._draws(spec, state, np.random.default_rng(0))
        lowest, spread = float(log_cost.mean(axis=0).min()), float(noise.mean())
        return math.exp(lowest + max(math.log(spec.beta_knob) + spread**2 / 2, 2.5 * spread))

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """The lowest mean of those that converged."""
        known = [i for i, weight in enumerate(state["weight"]) if weight]
        return spec.batch_sizes[min(known, key=lambda i: state["mean"][i])] if known else None

    def stage(self, spec: JobSpec, state: State) -> str:
        """The same always."""
        del spec, state
        return "learning"

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """Without a cost."""
        counts = state["converged"]
        return [
            ArmEstimate(size, int(count), None, None, "alive")
            for size, count in zip(spec.batch_sizes, counts, strict=True)
        ]

    def _hopeful(self, state: State) -> NDArray[np.bool_]:
        tries = np.array(state["failed"]) + np.array(state["stopped"])
        return np.array(tries + np.array(state["out_of_memory"]) < 6)

    def _draws(
        self, spec: JobSpec, state: State, rng: np.random.Generator
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Draws of the posterior: log costs, probabilities of failures (d, n), and noise (d, 1)."""
        known = particles(tuple(spec.batch_sizes), spec.default_batch_size)
        counts = {name: np.array(state[name]) for name in COSTS}
        variance = known.noise**2
        weight = counts["weight"]
        seen = weight > 0
        share = known.roughness**2
        precision = np.where(seen, 1 / (share + variance / np.maximum(weight, 1)), 0)
        above = np.where(seen, counts["mean"] - known.valley, 0)
        total = precision.sum(axis=1, keepdims=True)
        offset = (precision * above).sum(axis=1, keepdims=True) / np.maximum(total, 1e-12)
        log_likelihood = (
            np.log((1 - known.memory) * (1 - known.never) + LEAST) @ counts["converged"]
        )
        log_likelihood += np.log(known.memory + LEAST) @ counts["out_of_memory"]
        log_likelihood += np.log((1 - known.memory) * known.never + LEAST) @ counts["failed"]
        if seen.any():
            freedom = weight.sum() - seen.sum()
            fit = (precision * (above - offset) ** 2).sum(axis=1)
            fit -= np.log(np.where(seen, precision, 1)).sum(axis=1)
            fit += np.log(total[:, 0]) + freedom * np.log(variance[:, 0])
            log_likelihood -= 0.5 * (fit + state["squares"] / variance[:, 0])
            limit = counts["stopped_mean"] - known.valley - offset
            slow = known.heavy + (1 - known.heavy) * normal_cdf(-limit / known.noise)
            stops = (1 - known.memory) * (known.never + (1 - known.never) * slow)
            log_likelihood += np.log(stops + LEAST) @ counts["stopped"]
        likely = np.exp(log_likelihood - log_likelihood.max())
        which = rng.choice(len(likely), size=DRAWS, p=likely / likely.sum())
        pick = [each[which] for each in (known.valley, share, precision, above, offset, total)]
        valley, share, precision, above, offset, total = pick
        shape = valley.shape
        offset = offset + rng.standard_normal((DRAWS, 1)) / np.sqrt(np.maximum(total, 1e-12))
        if not seen.any():
            offset = np.zeros((DRAWS, 1))
        rough = share * precision * (above - offset)
        rough += np.sqrt(np.maximum(share * (1 - share * precision), 0)) * rng.standard_normal(
            shape
        )
        return valley + offset + rough, known.never[which], known.memory[which], known.noise[which]
