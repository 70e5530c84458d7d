"""Many replays: seeds, workloads and policies, in as many processes as there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zeus_service.simulation.cluster import replay_overlapping
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.machine import Trial
from zeus_service.simulation.replay import replay
from zeus_service.simulation.submissions import Submission
from zeus_service.simulation.workload import Drift, Workload
from zeus_service.spec import JobSpec


@dataclass(frozen=True)
class Experiment:
    """One job to replay.

    Args:
        workload: What is trained.
        spec: The job, with its policy, knobs and seed.
        submissions: When it is started: how often, one after the other, or overlapping.
    """

    workload: Workload | Drift
    spec: JobSpec
    submissions: int | tuple[Submission, ...]

    @property
    def recurrences(self) -> int:
        """How often the job recurs."""
        return self.submissions if isinstance(self.submissions, int) else len(self.submissions)

    @property
    def ratios(self) -> list[float]:
        """How long each recurrence takes against the workload's mean."""
        if isinstance(self.submissions, int):
            return [1.0] * self.submissions
        return [submission.runtime_ratio for submission in self.submissions]

    def run(self) -> list[Trial]:
        """Replay it.

        Raises:
            SimulationError: Every batch size has failed.
        """
        if isinstance(self.submissions, int):
            return replay(self.workload, self.spec, self.submissions)
        return replay_overlapping(self.workload, self.spec, self.submissions)


def run_all(experiments: Sequence[Experiment], jobs: int | None = None) -> Iterator[list[Trial]]:
    """Replay them all; the results come in order, each as soon as it is there.

    Args:
        experiments: What to replay.
        jobs: Processes; -1: one per core. None: what joblib's configuration says, one without
            any. `joblib.parallel_config(backend="dask")` around the call, or `"ray"`, runs them on
            a cluster.

    Raises:
        SimulationError: Every batch size of a job has failed, or more than one process is wanted
            and joblib is not installed.
    """
    try:
        import joblib  # of the extra `analysis`
    except ImportError:
        if jobs not in (None, 1):
            raise SimulationError(
                "more than one process needs joblib: "
                "pip install 'zeus-lightning[service,analysis]', or take --jobs 1"
            ) from None
        return (experiment.run() for experiment in experiments)
    # Some backends, as Ray's, give all results at the end.
    streams = joblib.parallel.get_active_backend()[0].supports_return_generator
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    return iter(parallel(joblib.delayed(Experiment.run)(experiment) for experiment in experiments))
