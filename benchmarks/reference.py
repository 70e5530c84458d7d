"""A yardstick for policies: Bayesian, with one step of look-ahead, and well informed.

It knows the distribution of the family of synthetic workloads, but not of which kind a job is, and
how many recurrences are left; it does not know that jobs can change. It is slow, and no policy of
the service.

**Posterior.** The prior is a sample of the family's own workloads, with the job's batch sizes and
default. Their valleys are combined with each noise and roughness of a grid, and weighted by the
likelihood of the trials so far; the offset of the curve and each batch size's deviation from the
valley are integrated in closed form. The grid has no roughness near zero, and one that is larger
than the family's, so that a valley that is almost right is not excluded by exact costs, however few
valleys there are (as the kernels of Liu and West, "Combined parameter and state estimation in
simulation-based filtering", 2001).

**Choice.** The knowledge gradient for correlated beliefs (Frazier, Powell, Dayanik, INFORMS Journal
on Computing 21(4), 2009): for each batch size, what the choice made after a run of it is expected
to save in each of the recurrences to come, less what the run is expected to cost more. A run tells
whether it fails or is stopped, and otherwise its cost: in either case the log costs of all batch
sizes are taken as jointly normal. Since one run with much noise may change no choice where several
would, the run may be any number of runs (Frazier and Powell, "Paradoxes in learning and the
marginal value of information", Decision Analysis 7(4), 2010).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import family
import numpy as np
from numpy.typing import NDArray
from zeus_service.bandit.cost_model import normal_cdf
from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    State,
)
from zeus_service.bandit.spec import JobSpec

Floats = NDArray[np.float64]
WORKLOADS = 4000
COMPONENTS = 600
"""Of the posterior, with which the choice is made."""
ROUGHNESS = (0.01, 0.03, 0.1)
NOISES = 7
"""Quantiles of the noise of the sample."""
RUNS = (1, 2, 4, 8, 16, 32)
Z = np.array([NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)])
LEAST = 1e-4
"""Of a probability, so that no trial excludes all workloads."""
CHANGING = ("dearer", "cheaper", "to_and_fro", "overlapping")
COUNTS = ("weight", "mean", "converged", "out_of_memory", "failed", "stopped", "stopped_mean")
TRIES = 6
"""A job ends if each batch size has failed so often before any run has converged."""


@dataclass(frozen=True)
class Sample:
    """Workloads of the family, with values for each batch size (p, n); weights (p,)."""

    valley: Floats
    never: Floats
    memory: Floats
    weight: Floats
    noises: Floats


@dataclass(frozen=True)
class Posterior:
    """Equally likely components (c, n); covariances of log costs (c, n, n), and noise (c, 1)."""

    log_cost: Floats
    covariance: Floats
    never: Floats
    memory: Floats
    noise: Floats


@lru_cache(maxsize=4)
def sample(sizes: tuple[int, ...], default: int) -> Sample:
    """Draw workloads of all kinds that do not change, with these batch sizes and this default."""
    rng = np.random.default_rng(7)
    kinds = [kind for kind in family.KINDS if kind not in CHANGING]
    if len(sizes) < 3:
        kinds = [kind for kind in kinds if kind not in ("cliff", "memory", "shared_memory")]
    rows: list[tuple[Any, ...]] = []
    while len(rows) < WORKLOADS:
        draft = family.draft_of(rng, list(sizes))
        draft.default = any_default = -1
        family.KINDS[kinds[int(rng.integers(len(kinds)))]](draft, rng)
        if draft.default not in (any_default, sizes.index(default)):
            continue
        weight = 1 / len(sizes) if draft.default == any_default else 1.0
        draft.roughness = np.zeros(len(sizes))
        tail = 0.1 * 0.9 * math.log(5) ** 2 if draft.heavy_tail else 0.0
        noise = math.sqrt(math.log1p(draft.variation**2) + tail)
        never = np.where(draft.fails, 1.0, draft.failing)
        rows.append((draft.valley(0.0), never, draft.memory, weight, noise))
    *values, noises = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    return Sample(*values, np.quantile(noises, (np.arange(NOISES) + 0.5) / NOISES))


@lru_cache(maxsize=2)
def posterior(sizes: tuple[int, ...], default: int, seen: tuple[Any, ...]) -> Posterior:
    """Weigh the sample by the likelihood of trials, the items of a state."""
    known, counts = sample(sizes, default), {name: np.array(value) for name, value in seen}
    noise, rough = (each.ravel() for each in np.meshgrid(known.noises, ROUGHNESS))
    weight, has_cost = counts["weight"], counts["weight"] > 0
    variances, own = noise[:, None] ** 2, rough[:, None] ** 2
    precision = weight / (weight * own + variances)  # of the grid (g, n)
    total = np.maximum(precision.sum(axis=1, keepdims=True), 1e-9)
    above = np.where(has_cost, counts["mean"] - known.valley, 0)  # of the sample (p, n)
    offset = above @ precision.T / total.T  # (p, g)
    log_likelihood = np.log(known.weight)
    log_likelihood += np.log((1 - known.memory) * (1 - known.never) + LEAST) @ counts["converged"]
    log_likelihood += np.log(known.memory + LEAST) @ counts["out_of_memory"]
    log_likelihood += np.log((1 - known.memory) * known.never + LEAST) @ counts["failed"]
    both = np.repeat(log_likelihood[:, None], len(noise), axis=1)
    if has_cost.any():
        both -= 0.5 * (np.square(above) @ precision.T - offset**2 * total.T)
        both -= 0.5 * (
            np.log1p(weight * own / variances).sum(axis=1)
            + np.log(total[:, 0])
            + weight.sum() * 2 * np.log(noise)
            + counts["squares"] / noise**2
        )
        for index in np.flatnonzero(counts["stopped"]):
            beyond = known.valley[:, [index]] + offset - counts["stopped_mean"][index]
            slow = normal_cdf(beyond / np.hypot(noise, rough))
            never, fits = known.never[:, [index]], 1 - known.memory[:, [index]]
            both += np.log(fits * (never + (1 - never) * slow) + LEAST) * counts["stopped"][index]
    share = np.exp(both - both.max()).ravel()
    # Systematic resampling: each component as often as its share, up to one.
    at = (np.arange(COMPONENTS) + 0.5) / COMPONENTS * share.sum()
    which, group = np.divmod(np.searchsorted(share.cumsum(), at), len(noise))
    alone = own * precision
    log_cost = known.valley[which] + offset[which, group][:, None]
    log_cost += alone[group] * (above[which] - offset[which, group][:, None])
    covariance = (1 - alone)[:, :, None] * ((1 - alone) / total)[:, None, :]
    covariance += (own * (1 - alone))[:, :, None] * np.eye(len(sizes))
    if not has_cost.any():
        covariance = np.zeros_like(covariance)
    return Posterior(
        log_cost,
        covariance[group],
        known.never[which],
        known.memory[which],
        noise[group][:, None],
    )


class ReferencePolicy:
    """The yardstick; `horizon` is the number of recurrences of the job."""

    name = "reference"

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon

    def initial_state(self, spec: JobSpec) -> State:
        """Counts and means of log costs for each batch size."""
        zeros = {name: [0.0] * len(spec.batch_sizes) for name in COUNTS}
        return {**zeros, "squares": 0.0, "recurrences": 0}

    def next_batch_size(
        self, spec: JobSpec, state: State, rng: np.random.Generator, usable: Collection[int]
    ) -> Choice:
        """The one for which the next runs, and all that follow, are expected to cost least."""
        del rng, usable  # simulated devices divide every batch size
        tries = np.add(np.add(state["failed"], state["stopped"]), state["out_of_memory"])
        if not any(state["weight"]) and min(tries) >= TRIES:
            raise NoBatchSizeLeft
        posterior = self._posterior(spec, state)
        # In costs of the best batch size, a failed run costs about two, a lack of memory a tenth.
        never, memory = (np.minimum(each, 0.98) for each in (posterior.never, posterior.memory))
        always = posterior.log_cost + np.log1p(
            2 * never / (1 - never) + 0.1 * memory / (1 - memory)
        )
        deviation = np.sqrt(
            np.diagonal(posterior.covariance, axis1=1, axis2=2) + posterior.noise**2
        )
        log_bound = math.log(min(self.cost_bound(spec, state), 1e300))
        slow = normal_cdf((posterior.log_cost - log_bound) / deviation)
        stopped = never + (1 - never) * slow
        failing = stopped + (1 - stopped) * memory
        means = always.mean(axis=0)
        best = int(np.argmin(means))
        now = np.exp(np.minimum(posterior.log_cost - means[best], 5))
        lost = (1 - memory) * stopped * 2 + memory * 0.1 * now
        extra = ((1 - failing) * now + lost + failing).mean(axis=0)
        extra = np.maximum(extra - extra[best], 0)
        left = max(1, self._horizon - state["recurrences"])
        runs = np.array(RUNS)
        scores = [
            (
                runs * extra[i] - np.maximum(0, left - runs) * gains(i, always, failing, posterior)
            ).min()
            for i in range(len(spec.batch_sizes))
        ]
        chosen = int(np.argmin(scores))
        return Choice(spec.batch_sizes[chosen], "exploit" if chosen == best else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """Nothing: trials do not overlap."""
        del spec, choice
        return state

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Count the trial."""
        index = spec.batch_sizes.index(observation.choice.batch_size)
        state = {k: list(v) if isinstance(v, list) else v for k, v in state.items()}
        log_cost = math.log(max(observation.cost, 1e-300))
        if observation.result == "converged":
            state["recurrences"] += 1
            state["converged"][index] += 1
            weight, mean = state["weight"][index], state["mean"][index]
            state["squares"] += weight / (weight + 1) * (log_cost - mean) ** 2
            state["weight"][index] = weight + 1
            state["mean"][index] = mean + (log_cost - mean) / (weight + 1)
        elif observation.result == "early_stopped":
            count = state["stopped"][index] = state["stopped"][index] + 1
            mean = state["stopped_mean"][index]
            state["stopped_mean"][index] = mean + (log_cost - mean) / count
        elif observation.result == "out_of_memory":
            state["out_of_memory"][index] += 1
        else:
            state["failed"][index] += 1
        return state

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """`beta_knob` times the lowest expected cost; at least two and a half deviations above."""
        if not any(state["weight"]) or spec.beta_knob is None:
            return math.inf
        posterior = self._posterior(spec, state)
        means, noise = posterior.log_cost.mean(axis=0), float(posterior.noise.mean())
        lowest = float(means[np.array(state["weight"]) > 0].min())
        return math.exp(lowest + max(math.log(spec.beta_knob) + noise**2 / 2, 2.5 * noise))

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

    def _posterior(self, spec: JobSpec, state: State) -> Posterior:
        seen = {name: tuple(state[name]) for name in COUNTS}
        items = tuple({**seen, "squares": state["squares"]}.items())
        return posterior(tuple(spec.batch_sizes), spec.default_batch_size, items)


def gains(index: int, always: Floats, failing: Floats, posterior: Posterior) -> Floats:
    """What each of `RUNS` with a batch size is expected to save in a later recurrence.

    Args:
        index: Of the batch size.
        always: (c, n), log costs of a recurrence if a batch size is always chosen.
        failing: (c, n), probabilities that a run fails.
        posterior: Of the same components.
    """
    fails, converges = failing[:, index], 1 - failing[:, index]
    if_failed = float((fails @ always / max(fails.sum(), 1e-12)).min())
    weight = converges / max(converges.sum(), 1e-12)
    means = weight @ always
    covariance = weight @ ((always - means)[:, [index]] * (always - means))
    covariance += weight @ posterior.covariance[:, index]
    noises = np.square(posterior.noise).mean() / np.array(RUNS)
    moved = covariance / np.sqrt(covariance[index] + noises)[:, None]
    if_converged = (means[:, None] + moved[:, :, None] * Z).min(axis=1).mean(axis=1)
    chance = float(fails.mean())
    after = (1 - chance) * if_converged + chance * if_failed
    result: Floats = always.mean(axis=0).min() - after
    return result
