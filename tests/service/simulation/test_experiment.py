"""Many replays."""

from __future__ import annotations

import joblib
from service.simulation import recorded
from zeus_service.simulation.experiment import Experiment, run_all
from zeus_service.simulation.submissions import synthetic_groups

WORKLOAD = recorded.workload()
OVERLAPPING = synthetic_groups(["letters"], 0, groups=1, submissions=10)[0].submissions
EXPERIMENTS = [
    Experiment(WORKLOAD, WORKLOAD.spec(policy="zeus", seed=seed), submissions)
    for seed in range(3)
    for submissions in (12, OVERLAPPING)
]


def test_two_processes_give_what_one_gives_in_the_same_order() -> None:
    assert list(run_all(EXPERIMENTS, jobs=2)) == list(run_all(EXPERIMENTS, jobs=1))


class DoesNotStream(joblib._parallel_backends.ThreadingBackend):  # type: ignore[misc] # has no types
    """As joblib's `multiprocessing`, which forks a process of many threads: that may hang."""

    supports_return_generator = False


def test_a_backend_of_joblib_that_does_not_stream_gives_the_same() -> None:
    with joblib.parallel_config(backend=DoesNotStream(), n_jobs=2):
        assert list(run_all(EXPERIMENTS)) == list(run_all(EXPERIMENTS, jobs=1))


def test_results_come_one_by_one() -> None:
    results = run_all(EXPERIMENTS, jobs=1)
    assert next(results) == EXPERIMENTS[0].run()
    assert len(list(results)) == len(EXPERIMENTS) - 1
