"""What runs cost, and how they end."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.simulation import recorded
from zeus_service.bandit.policy import Choice
from zeus_service.simulation.simulated_run import StartedTrial, TrialRunner, run
from zeus_service.simulation.workload import Epoch, Price, Setting

WORKLOAD = recorded.workload()
PRICE = Price(100.0, Epoch(2.0, 300.0), 250.0, Epoch(3.0, 400.0))


def runner(seed: int) -> TrialRunner:
    return TrialRunner(WORKLOAD.spec(policy="zeus", seed=seed))


def test_profiling_an_epoch_takes_the_mean_over_the_power_limits() -> None:
    setting = Setting((1.0,), {100.0: Epoch(4.0, 200.0), 200.0: Epoch(2.0, 300.0)})
    assert setting.price(0.5, 200.0).profiling == Epoch(3.0, 250.0)


@given(
    target=st.integers(1, 300).map(float) | st.just(math.inf),
    max_epochs=st.integers(1, 200),
    bound=st.floats(0, 1e6) | st.just(math.inf),
)
def test_a_run_ends_at_its_target_or_before_the_epoch_that_would_cross_the_bound(
    target: float, max_epochs: int, bound: float
) -> None:
    ended = run(PRICE, target, max_epochs, bound, profiling=False)
    assert ended.epochs * 250.0 <= bound
    assert ended.epochs <= min(target, max_epochs)
    assert (ended.time_s, ended.energy_j) == (ended.epochs * 2.0, ended.epochs * 300.0)
    if ended.result == "converged":
        assert ended.epochs == target
    else:
        assert target > ended.epochs
        assert (ended.result == "not_converged") == (ended.epochs == max_epochs)
        assert ended.epochs == max_epochs or (ended.epochs + 1) * 250.0 > bound


def test_only_the_first_epoch_profiles() -> None:
    ended = run(PRICE, 4.0, 9, math.inf, profiling=True)
    assert (ended.time_s, ended.energy_j) == (3.0 + 3 * 2.0, 400.0 + 3 * 300.0)


def test_a_run_that_is_stopped_before_its_first_epoch_costs_nothing() -> None:
    ended = run(PRICE, 4.0, 9, 249.0, profiling=True)
    assert vars(ended) == {"result": "early_stopped", "epochs": 0, "time_s": 0.0, "energy_j": 0.0}


def test_only_the_first_try_of_a_batch_size_profiles() -> None:
    simulated, profiled = runner(1), []
    for number, size in enumerate([8, 8, 16, 8], 1):
        started = StartedTrial(number, Choice(size, "explore"), WORKLOAD.hardware, math.inf)
        trial = simulated.run(WORKLOAD, started, 0)
        epoch = WORKLOAD.settings[size].price(0.5, WORKLOAD.max_power_w).epoch
        profiled.append(trial.time_s != trial.epochs * epoch.time_s)
    assert profiled == [True, False, True, False]


def test_the_expected_epochs_count_the_failed_runs_before_the_one_that_reaches() -> None:
    # One run in two fails after 20 epochs: on average one failure before 10 epochs that reach.
    assert Setting((10.0, math.inf), {}).expected_epochs(20) == pytest.approx(30.0)
    assert Setting((10.0, 25.0), {}).expected_epochs(20) == pytest.approx(30.0)
    assert Setting((10.0, 12.0), {}).expected_epochs(20) == pytest.approx(11.0)
    assert math.isinf(Setting((21.0, math.inf), {}).expected_epochs(20))
