"""No policy's state depends on the processor, whose arithmetic may differ in the last places."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from service.jobs import HARDWARE, LEARNING, PastTrial, observation, spec
from zeus_service.bandit import fold
from zeus_service.bandit.policy import Choice, Policy, State
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation.replay import replay
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload


class Perturbed(np.ndarray):
    """An array whose results are up to four units in the last place off, by chance."""

    rng = np.random.default_rng(0)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        plain = [np.asarray(each) if isinstance(each, Perturbed) else each for each in inputs]
        result = np.asarray(getattr(ufunc, method)(*plain, **options))
        if result.dtype == float:
            with np.errstate(over="ignore"):
                units = self.rng.integers(-4, 5, result.shape)
                # An infinite number has no last place.
                finite = np.where(np.isfinite(result), result, 0.0)
                result = result + units * np.spacing(finite)
        if out is not None:
            out[0][...] = result
            return out[0]
        return result.view(Perturbed)[()]


@contextmanager
def another_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Perturb every array that a policy makes, and every logarithm and exponential."""

    def array(*arguments: Any, make: Any = np.array, **options: Any) -> Any:
        made = make(*arguments, **options)
        return made.view(Perturbed) if made.dtype == float else made

    def perturbed(function: Callable[[float], float]) -> Callable[[float], float]:
        return lambda x: (y := function(x)) + int(Perturbed.rng.integers(-4, 5)) * math.ulp(y)

    forget_what_was_computed()
    with monkeypatch.context() as patch:
        patch.setattr(np, "array", array)
        patch.setattr(math, "log", perturbed(math.log))
        patch.setattr(math, "exp", perturbed(math.exp))
        yield
    forget_what_was_computed()


def forget_what_was_computed() -> None:
    """Clear the caches of all modules with policies."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zeus_service.bandit"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def states(job: JobSpec, trials: list[PastTrial]) -> list[State]:
    """The state after each start and end of trials that follow one another."""
    (state, counts), found = fold.replay(job, []), []
    for trial in trials:
        begun = fold.begin(job, state, trial)
        state, counts = fold.end(job, begun, counts, trial)
        found += [begun, state]
    return found


@pytest.mark.parametrize("policy", LEARNING.values(), ids=LEARNING)
@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (synthetic_workload(5), {"beta_knob": 1.3}),
        (drifting_workload(1), {"beta_knob": 1.3}),
        (drifting_workload(1), {"beta_knob": 1.3, "window_size": 10}),
    ],
    ids=["early stops", "drift", "window"],
)
def test_the_state_does_not_depend_on_the_processor(
    policy: Policy,
    workload: Workload,
    knobs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = workload.spec(policy=policy.name, seed=1, **knobs)
    trials = [
        PastTrial(trial.batch_size, trial.why, trial.result, trial.cost, trial.epochs)
        for trial in replay(workload, job, 200)
    ]
    assert {trial.outcome for trial in trials} == {"converged", "early_stopped"}
    here = states(job, trials)
    with another_processor(monkeypatch):
        there = states(job, trials)
    assert there == here


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_tie_does_not_depend_on_the_processor(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spec(batch_sizes=[8, 16], default_batch_size=8, policy=policy.name)
    # With a cost of one of them alone, both are expected to cost the same; one is less certain.
    trials = [
        PastTrial(8, "explore", "converged", 0.0),
        PastTrial(16, "explore", "converged", 1000.0),
        PastTrial(8, "explore", "early_stopped", 500.0),
    ]
    here = states(job, trials)
    for _ in range(20):
        with another_processor(monkeypatch):
            assert states(job, trials) == here


def test_another_processor_differs_in_what_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = POLICIES["information_directed"]
    job, choice = spec(), Choice(32, "explore")
    state = policy.begin(job, policy.initial_state(job), choice, HARDWARE)
    state = policy.observe(job, state, observation(choice, "converged", 1000.0))
    here = policy.cost_bound(job, state, HARDWARE)
    with another_processor(monkeypatch):
        there = policy.cost_bound(job, state, HARDWARE)
    assert there != here
    assert there == pytest.approx(here, rel=1e-9)
