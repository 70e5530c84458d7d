"""The Zeus project's own server decides the same for the same runs."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.conftest import on_sqlite
from service.jobs import spec
from zeus_service import optimizer
from zeus_service.bandit import zeus
from zeus_service.bandit.fold import passed_over
from zeus_service.bandit.policy import Moments
from zeus_service.db import queries

numbers = itertools.count()

epochs = st.lists(
    st.tuples(
        st.floats(1, 100),  # seconds
        st.floats(1, 1000),  # joules
        st.sampled_from([0.1, 0.5, 0.9]),  # metric; the target is 0.5
    ),
    min_size=0,
    max_size=4,
)
jobs = st.fixed_dictionaries(
    {
        "batch_sizes": st.lists(st.integers(1, 9), min_size=2, max_size=5, unique=True),
        "eta_knob": st.sampled_from([0.0, 0.3, 1.0]),
        "beta_knob": st.sampled_from([None, 0.8, 1.5, 2.0]),
        "higher_is_better_metric": st.booleans(),
        "num_pruning_rounds": st.integers(1, 3),
    }
)


class Both:
    """Our service and the reference, asked the same; their answers must agree.

    The batch size of a trial beside an exploration may differ: see the policy's docstring.
    """

    def __init__(self, app: Flask, job: dict[str, Any]) -> None:
        import zeus_server  # takes seconds, which only these tests need

        self.ours, self.theirs = app.test_client(), zeus_server.ZeusServer()
        self.refusal = zeus_server.ServerError
        self.job_id = f"both-{next(numbers)}"
        self.has_converged = self.has_passed_over = False
        self.their_trials: dict[int, dict[str, Any]] = {}
        job = {
            "job_id": self.job_id,
            "job_id_prefix": "both",
            "target_metric": 0.5,
            "max_epochs": 3,
            "max_power": 10.0,
            "number_of_gpus": 1,
            "gpu_model": "Fake GPU",
            **job,
        }
        assert self.ours.post("/jobs", json=job).status_code == 201
        self.theirs.register(job)

    def is_comparable(self) -> bool:
        """Whether they are pruning, and ours has passed over no batch size: theirs never does."""
        job = optimizer.get_job(self.job_id)
        rounds = job.spec["num_pruning_rounds"]
        is_pruning = all(own["round"] <= rounds for own in job.state["hardware"].values())
        return is_pruning and not job.exhausted and not self.has_passed_over

    def start(self) -> dict[str, Any] | None:
        """A trial; None: there is no batch size left."""
        response = self.ours.get(f"/jobs/batch_size?job_id={self.job_id}")
        if response.status_code != 200:
            assert response.status_code == 409
            with pytest.raises(self.refusal):
                self.theirs.start(self.job_id)
            return None
        trial: dict[str, Any] = response.get_json()
        theirs = self.theirs.start(self.job_id)
        self.their_trials[trial["trial_number"]] = theirs
        explores = queries.get_trial(self.job_id, trial["trial_number"])[0].why == "explore"
        assert explores == self.theirs.explores(theirs)
        assert trial == (theirs if explores else {**theirs, "batch_size": trial["batch_size"]})
        return trial

    def report(self, result: dict[str, Any]) -> bool:
        """Whether the run goes on."""
        answer = self.ours.post("/report", json=result).get_json()
        reference = self.theirs.report({**result, **self.their_trials[result["trial_number"]]})
        for name in ("stop_train", "converged"):
            assert answer[name] == reference[name], (answer, reference)
        self.has_converged |= answer["converged"]
        return not answer["stop_train"]

    def end(self, trial: dict[str, Any]) -> None:
        assert self.ours.patch("/trials", json=trial).status_code == 200
        self.theirs.end(self.their_trials[trial["trial_number"]])
        self.has_passed_over |= bool(passed_over(optimizer.get_job(self.job_id).inconclusive))

    def run(self, trial: dict[str, Any], epochs: list[tuple[float, float, float]]) -> None:
        """Train as Zeus's client does, up to the exit of its process."""
        for _ in self.reports(trial, epochs):
            pass

    def reports(
        self, trial: dict[str, Any], epochs: list[tuple[float, float, float]]
    ) -> Iterator[None]:
        """The same, one report at a time."""
        time_s = energy_j = trial["trial_number"] / 1000  # no two runs cost the same
        for epoch, (more_s, more_j, metric) in enumerate(epochs, 1):
            time_s, energy_j = time_s + more_s, energy_j + more_j
            result = {
                **trial,
                "time": time_s,
                "energy": energy_j,
                "metric": metric,
                "current_epoch": epoch,
            }
            if not self.report(result):
                self.report({**result, "current_epoch": epoch + 1})  # and again, after the end
                break
            yield
        self.end(trial)


@on_sqlite
@given(job=jobs, default=st.integers(0, 4), runs=st.lists(epochs, min_size=6, max_size=18))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_pruning_rounds_and_the_results_are_the_same(
    app: Flask, job: dict[str, Any], default: int, runs: list[Any]
) -> None:
    sizes = job["batch_sizes"]
    both = Both(app, {**job, "default_batch_size": sizes[default % len(sizes)]})
    for epochs in runs:
        if not both.is_comparable():
            break
        try:
            trial = both.start()
        except both.refusal as error:
            if both.has_converged and "No converged batch sizes" in str(error):
                break  # a later round has failed: see the test of that below
            raise
        if trial is None:
            break
        both.run(trial, epochs)


@on_sqlite
@given(
    job=jobs,
    default=st.integers(0, 4),
    runs=st.lists(epochs, min_size=6, max_size=18),
    order=st.lists(st.integers(0, 3), min_size=60, max_size=60),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_overlapping_runs_get_the_same_explorations_and_results(
    app: Flask, job: dict[str, Any], default: int, runs: list[Any], order: list[int]
) -> None:
    sizes = job["batch_sizes"]
    both = Both(app, {**job, "default_batch_size": sizes[default % len(sizes)]})
    waiting, running = deque(runs), deque[Iterator[None]]()
    for turn in order:  # 0: a run begins; else a running one goes on
        if turn == 0 and waiting and both.is_comparable():
            try:
                trial = both.start()
            except both.refusal as error:
                if "No converged batch sizes" in str(error):
                    break  # ours goes on while one may converge, or if one ever has
                raise
            if trial is None:
                break
            running.append(both.reports(trial, waiting.popleft()))
        elif running:
            running.rotate(turn)
            if next(running[0], "ended") == "ended":
                running.popleft()
    for run in running:
        deque(run)


FAILS = [(1.0, 1.0, 0.1)] * 3


def reaches(cost: float) -> list[tuple[float, float, float]]:
    """Epochs that reach the target at a cost, that of energy alone."""
    return [(1.0, cost, 0.9)]


@on_sqlite
def test_a_start_during_an_exploration_gets_the_cheapest_known_or_the_default(app: Flask) -> None:
    job = {"batch_sizes": [8, 16, 32], "default_batch_size": 16, "eta_knob": 1.0}
    both = Both(app, {**job, "higher_is_better_metric": True})
    first, second = both.start(), both.start()
    assert first
    assert second
    assert (first["batch_size"], second["batch_size"]) == (16, 16)
    both.run(first, reaches(20.0))
    both.run(second, reaches(21.0))
    for batch_size in (8, 32):
        exploring, concurrent = both.start(), both.start()
        assert exploring
        assert concurrent
        assert (exploring["batch_size"], concurrent["batch_size"]) == (batch_size, 16)
        both.run(concurrent, reaches(22.0))
        both.run(exploring, reaches(25.0))


@on_sqlite
def test_a_round_starts_from_the_cheapest_of_the_round_before_not_of_all(app: Flask) -> None:
    job = {"batch_sizes": [8, 16], "default_batch_size": 16, "eta_knob": 1.0, "beta_knob": None}
    both = Both(app, {**job, "num_pruning_rounds": 3})
    rounds = [(16, 10.0), (8, 30.0)], [(16, 50.0), (8, 35.0)], [(8, 40.0), (16, 40.0)]
    for batch_size, cost in itertools.chain(*rounds):  # 16 has the lower mean, 30 of 32.5
        assert both.is_comparable()
        trial = both.start()
        assert trial
        assert trial["batch_size"] == batch_size
        both.run(trial, reaches(cost))
    assert not both.is_comparable()


@on_sqlite
def test_a_run_that_fails_cheaply_sets_the_bound_for_those_that_converge(app: Flask) -> None:
    both = Both(app, {"batch_sizes": [16, 32], "default_batch_size": 16, "eta_knob": 1.0})
    for batch_size, epochs in ((16, FAILS), (32, reaches(20.0))):
        trial = both.start()
        assert trial
        assert trial["batch_size"] == batch_size
        both.run(trial, epochs)
    assert both.start() is None


@on_sqlite
def test_a_job_whose_later_round_fails_goes_on_here_and_is_over_there(app: Flask) -> None:
    job = {"batch_sizes": [8, 16], "default_batch_size": 16, "eta_knob": 1.0, "beta_knob": None}
    both = Both(app, job)
    for epochs in (reaches(20.0), reaches(25.0), FAILS):
        trial = both.start()
        assert trial
        both.run(trial, epochs)
    with pytest.raises(both.refusal):
        both.theirs.start(both.job_id)
    path = f"/jobs/batch_size?job_id={both.job_id}"
    assert both.ours.get(path).get_json()["batch_size"] in (8, 16)


@given(
    costs=st.lists(st.integers(1, 10**6), min_size=2, max_size=20, unique=True),
    prior=st.sampled_from([(0.0, 0.0), (-100.0, 1e-4), (5.0, 1.0)]),
)
def test_an_arm_is_estimated_to_cost_the_same(costs: list[int], prior: tuple[float, float]) -> None:
    import zeus_server

    mean, precision = prior
    moments = Moments()
    for cost in costs:
        moments = moments.add(cost)
    ours = zeus._posterior(spec(mab_prior_mean=mean, mab_prior_precision=precision), vars(moments))
    theirs = zeus_server.mab.GaussianTS(None)._fit_arm(
        zeus_server.arms.BatchSizeBase(job_id="job", batch_size=8),
        mean,
        precision,
        -np.array(costs),
    )
    assert ours == pytest.approx((theirs.param_mean, theirs.param_precision**-0.5), rel=1e-6)
