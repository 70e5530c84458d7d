"""What the policy makes of runs on several kinds of hardware."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from service.jobs import HARDWARE, OTHER, next_choice, spec
from zeus_service.bandit.cost_model import CostPosterior
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.outcomes import Result
from zeus_service.bandit.outlook import infer_costs
from zeus_service.bandit.policy import Choice, Observation, State
from zeus_service.bandit.spec import Hardware
from zeus_service.simulation.replay import replay
from zeus_service.simulation.workload import Epoch, Setting, Workload

policy = InformationDirectedPolicy()
JOB = spec()
EPOCHS = {8: 40, 16: 40, 32: 42, 64: 52, 128: 80}
EPOCH_J = {8: 40.0, 16: 28.0, 32: 22.0, 64: 19.0, 128: 18.0}


def observe(
    state: State,
    batch_size: int,
    hardware: Hardware,
    epochs: int,
    epoch_j: float,
    result: Result = "converged",
) -> State:
    """A trial, started and ended."""
    choice = Choice(batch_size, "exploit")
    state = policy.begin(JOB, state, choice, hardware)
    ended = Observation(choice, result, epochs * epoch_j, epochs, hardware)
    return policy.observe(JOB, state, ended)


def known(*where: Hardware, tries: int = 4) -> State:
    """The state after runs of all batch sizes on some hardware."""
    state, rng = policy.initial_state(JOB), np.random.default_rng(0)
    for hardware in where:
        for size in JOB.batch_sizes:
            for _ in range(tries):
                epochs = round(EPOCHS[size] * math.exp(rng.normal(0, 0.05)))
                state = observe(state, size, hardware, epochs, EPOCH_J[size])
    return state


def costs(state: State, hardware: Hardware) -> CostPosterior:
    posterior = infer_costs(JOB, state, hardware)
    assert posterior
    return posterior


def epoch_costs_seen(state: State, hardware: Hardware) -> float:
    return float(sum(state["hardware"][hardware.key]["epoch_cost"]["weight"]))


def test_the_best_batch_size_is_known_on_hardware_where_nothing_has_run() -> None:
    state = known(HARDWARE)
    best = policy.best_batch_size(JOB, state, HARDWARE)
    assert policy.best_batch_size(JOB, state, OTHER) == best
    choice = next_choice(policy, JOB, state, np.random.default_rng(0), OTHER)
    assert choice == Choice(best, "exploit")


def test_there_is_no_threshold_before_an_epoch_was_measured() -> None:
    state = known(HARDWARE)
    assert math.isinf(policy.cost_bound(JOB, state, OTHER))
    assert {arm.mean for arm in policy.describe(JOB, state, OTHER)} == {None}
    state = observe(state, 32, OTHER, 2, 50 * EPOCH_J[32], "diverged")
    threshold = 50 * policy.cost_bound(JOB, state, HARDWARE)
    assert policy.cost_bound(JOB, state, OTHER) == pytest.approx(threshold, rel=0.2)


@pytest.mark.parametrize("epochs", [5, 30])
def test_a_stopped_run_teaches_the_cost_of_an_epoch_and_that_more_are_needed(epochs: int) -> None:
    state = policy.initial_state(JOB)
    for _ in range(3):
        state = observe(state, 32, HARDWARE, 20, 10.0)
    before = costs(state, HARDWARE)
    state = observe(state, 128, HARDWARE, epochs, 7.0, "early_stopped")
    after = costs(state, HARDWARE)
    assert after.epoch_cost.mean[4] == pytest.approx(math.log(7.0), abs=0.02)
    assert math.sqrt(after.epoch_cost.variance[4]) < 0.05 < math.sqrt(before.epoch_cost.variance[4])
    drawn = after.epochs.draw(1000, np.random.default_rng(0))[0][:, 4]
    assert np.quantile(drawn, 0.1) > math.log(epochs) - 0.4
    assert after.epochs.mean[4] > before.epochs.mean[4]


def test_a_change_of_the_cost_of_an_epoch_is_forgotten_on_its_hardware_alone() -> None:
    state = known(HARDWARE, OTHER)
    runs, there = sum(state["epochs"]["weight"]), epoch_costs_seen(state, OTHER)
    for _ in range(3):
        state = observe(state, 64, HARDWARE, EPOCHS[64], 2 * EPOCH_J[64])
    assert epoch_costs_seen(state, HARDWARE) <= 2
    assert epoch_costs_seen(state, OTHER) == there
    assert sum(state["epochs"]["weight"]) == runs + 3


def test_a_change_of_the_epochs_is_forgotten_without_the_cost_of_an_epoch() -> None:
    state = known(HARDWARE, OTHER)
    seen = [epoch_costs_seen(state, hardware) for hardware in (HARDWARE, OTHER)]
    for _ in range(3):
        state = observe(state, 64, HARDWARE, 3 * EPOCHS[64], EPOCH_J[64])
    assert sum(state["epochs"]["weight"]) <= 3
    here, there = (epoch_costs_seen(state, hardware) for hardware in (HARDWARE, OTHER))
    assert [here, there] == [seen[0] + 3, seen[1]]


def test_a_batch_size_that_is_stopped_again_and_again_is_left() -> None:
    """Even if it promised to be the cheapest, and no run shows how many epochs it needs."""
    for seed in range(5):
        state, chosen = policy.initial_state(JOB), []
        for number in range(60):
            rng = np.random.default_rng([seed, number])
            size = next_choice(policy, JOB, state, rng).batch_size
            chosen.append(size)
            epochs = 40 if size <= 32 else 10_000
            bound = policy.cost_bound(JOB, state, HARDWARE)
            epoch_j = 100 / math.sqrt(size)
            reached = min(epochs, math.floor(min(bound / epoch_j, 1e6)))
            result: Result = "converged" if reached == epochs else "early_stopped"
            state = observe(state, size, HARDWARE, reached, epoch_j, result)
        assert sum(size > 32 for size in chosen[30:]) <= 1


def test_a_batch_size_that_never_converges_is_left_however_cheap_it_would_be() -> None:
    """Only the largest converges, and it is noisy: the curve allows the smallest any cost."""
    rng = np.random.default_rng(0)
    state = observe(policy.initial_state(JOB), 32, HARDWARE, 6000, 201.0, "not_converged")
    state = observe(state, 128, HARDWARE, 1037, 200.0)
    for size in (64, 16, 8):
        state = observe(state, size, HARDWARE, 2000, 205.0, "early_stopped")
    for _ in range(28):
        state = observe(state, 128, HARDWARE, round(1000 * math.exp(rng.normal(0, 0.4))), 200.0)
    for _ in range(6):
        state = observe(state, 8, HARDWARE, 2000, 208.0, "early_stopped")
    generators = map(np.random.default_rng, range(50))
    assert {next_choice(policy, JOB, state, each).batch_size for each in generators} == {128}


def test_a_best_batch_size_that_may_never_converge_again_is_compared_with_the_others() -> None:
    state = policy.initial_state(JOB)
    for _ in range(10):
        state = observe(state, 32, HARDWARE, 20, 10.0)
    for size in (8, 16, 64, 128, *[32] * 5):
        state = observe(state, size, HARDWARE, 20, 10.0, "diverged")
    generators = map(np.random.default_rng, range(400))
    with np.errstate(all="raise", under="ignore"):
        chosen = {next_choice(policy, JOB, state, each).batch_size for each in generators}
    assert chosen == {8, 16}


def on(gpu: str, *, per_sample_s: float, power_w: float) -> Workload:
    """The same training on one of two GPUs, whose steps have the same fixed part."""
    settings = {}
    for power in range(4, 11):
        size = 2**power
        rng = np.random.default_rng(power)
        epochs = np.ceil(20 * (1 + size / 64) * np.exp(rng.normal(0, 0.06, 100)))
        epoch_s = (0.02 + per_sample_s * size) * 50_000 / size
        settings[size] = Setting(
            tuple(epochs.tolist()), {power_w: Epoch(epoch_s, power_w * epoch_s)}
        )
    return Workload("moved", gpu, settings, 1024, 1000, power_w)


SLOW = on("slow", per_sample_s=1e-3, power_w=150.0)
FAST = on("fast", per_sample_s=3e-4, power_w=300.0)


def excess(workload: Workload, seed: int, recurrences: int, begin: int) -> float:
    """What recurrences from `begin` on cost beyond the best batch size, as a share of that.

    Costs are expected ones, so that the luck of single runs does not count; a failed try costs what
    it did.
    """
    spent = best = 0.0
    for trial in replay(workload, workload.spec(policy=policy.name, seed=seed), recurrences):
        if trial.recurrence < begin:
            continue
        at = workload.at(trial.recurrence)
        if trial.result == "converged":
            spent += at.expected_cost(trial.batch_size, 0.5)
            best += at.expected_cost(at.oracle(0.5), 0.5)
        else:
            spent += trial.cost
    return spent / best - 1


@pytest.mark.parametrize(("first", "second"), [(SLOW, FAST), (FAST, SLOW)])
def test_a_move_costs_a_quarter_of_a_fresh_start_at_most(first: Workload, second: Workload) -> None:
    assert first.oracle(0.5) != second.oracle(0.5)
    moving = replace(first, phases=(first, first, second, second, second), phase_length=10)
    moved = fmean(excess(moving, seed, 50, 20) for seed in range(3))
    fresh = fmean(excess(second, seed, 30, 0) for seed in range(3))
    assert moved <= 0.25 * fresh
