"""The policy of an installed distribution, whose errors and results are checked.

A defect of a policy is neither one of the service nor of a job's row: the error names the policy.
"""

from __future__ import annotations

import json
import math
import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    Policy,
    State,
    Why,
)
from zeus_service.bandit.spec import JobSpec
from zeus_service.errors import PolicyFailed


class _WrongResult(Exception):
    """Raised when a policy has returned what the service cannot use."""


class InstalledPolicy:
    """A policy that raises `PolicyFailed` in place of any error but `NoBatchSizeLeft`.

    numpy's numbers become Python's, which every database stores as numbers.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name

    def initial_state(self, spec: JobSpec) -> State:
        """See `Policy`."""
        with self._calling("initial_state", spec):
            return _state(self._policy.initial_state(spec))

    def next_batch_size(self, spec: JobSpec, state: State, rng: np.random.Generator) -> Choice:
        """See `Policy`."""
        with self._calling("next_batch_size", spec):
            choice = self._policy.next_batch_size(spec, state, rng)
            if not isinstance(choice, Choice) or choice.why not in get_args(Why):
                raise _WrongResult(f"{choice!r}, which is not a Choice")
            return Choice(_batch_size(spec, choice.batch_size), choice.why)

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """See `Policy`."""
        with self._calling("begin", spec):
            return _state(self._policy.begin(spec, state, choice), before=state)

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """See `Policy`."""
        with self._calling("observe", spec):
            return _state(self._policy.observe(spec, state, observation), before=state)

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """See `Policy`."""
        with self._calling("cost_bound", spec):
            bound = float(self._policy.cost_bound(spec, state))
            if not bound >= 0:  # also false for NaN
                raise _WrongResult(f"{bound}, which is not a cost")
            return bound

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """See `Policy`."""
        with self._calling("best_batch_size", spec):
            best = self._policy.best_batch_size(spec, state)
            return None if best is None else _batch_size(spec, best)

    def stage(self, spec: JobSpec, state: State) -> str:
        """See `Policy`."""
        with self._calling("stage", spec):
            stage = self._policy.stage(spec, state)
            if not isinstance(stage, str):
                raise _WrongResult(f"{stage!r}, which is not a text")
            return stage

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """See `Policy`."""
        with self._calling("describe", spec):
            arms = [_arm(spec, arm) for arm in self._policy.describe(spec, state)]
            if [arm.batch_size for arm in arms] != spec.batch_sizes:
                raise _WrongResult("estimates that are not one for each batch size, ascending")
            return arms

    @contextmanager
    def _calling(self, function: str, spec: JobSpec) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, NoBatchSizeLeft) and function == "next_batch_size":
                raise
            did = f"returned {error}"
            if not isinstance(error, _WrongResult):
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(frame.filename).name}, line {frame.lineno}"
                did = f"raised {type(error).__name__}: {error} ({where})"
            raise PolicyFailed(
                f"policy {self.name!r}: its {function}() for job {spec.job_id!r} {did}; correct "
                "the policy and restart the service. If the policy is correct, the job's state may "
                "be damaged: `zeus-service rebuild` recomputes it"
            ) from error


def _batch_size(spec: JobSpec, value: Any) -> int:
    try:
        batch_size = operator.index(value)
    except TypeError:
        raise _WrongResult(f"the batch size {value!r}, which is not an integer") from None
    if batch_size not in spec.batch_sizes:
        raise _WrongResult(f"the batch size {batch_size}, which the job does not have")
    return batch_size


def _state(state: State, *, before: State | None = None) -> State:
    if not isinstance(state, dict):
        raise _WrongResult(f"{state!r:.100}, which is not a dict")
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _WrongResult(f"a state that is not JSON: {error}") from error
    if before is not None and (missing := before.keys() - state.keys()):
        raise _WrongResult(f"a state without {sorted(missing)}")
    return state


def _arm(spec: JobSpec, arm: ArmEstimate) -> ArmEstimate:
    numbers = {name: getattr(arm, name) for name in ("mean", "spread")}
    numbers = {name: None if value is None else float(value) for name, value in numbers.items()}
    if not all(value is None or math.isfinite(value) for value in numbers.values()):
        raise _WrongResult(f"{arm}, which is not finite")
    pulls = operator.index(arm.pulls)
    return replace(arm, batch_size=_batch_size(spec, arm.batch_size), pulls=pulls, **numbers)
