"""Many replays, in one process or several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation import SimulationError
from zeus_service.simulation.replay import replay
from zeus_service.simulation.simulated_run import SimulatedTrial
from zeus_service.simulation.submissions import Submission
from zeus_service.simulation.workload import Workload

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Experiment:
    """A replay of a job on a workload, with the job's policy, knobs and seed.

    Args:
        submissions: The number of recurrences, one after the other; or those that may overlap.
    """

    workload: Workload
    spec: JobSpec
    submissions: int | Sequence[Submission]

    @property
    def key(self) -> Key:
        """The names of workload, GPU and policy."""
        return self.workload.name, self.workload.gpu, self.spec.policy or ""

    @property
    def ratios(self) -> list[float]:
        """For each recurrence, how long it takes, in relation to the workload's mean."""
        if isinstance(self.submissions, int):
            return [1.0] * self.submissions
        return [submission.runtime_ratio for submission in self.submissions]

    def run(self) -> list[SimulatedTrial]:
        """Replay the job."""
        return replay(self.workload, self.spec, self.submissions)


def run_all(
    experiments: Sequence[Experiment], jobs: int | None = None
) -> Iterator[list[SimulatedTrial]]:
    """Replay all experiments; yield their trials in order, each as soon as it is available.

    Args:
        experiments: The replays.
        jobs: Processes, -1 for one per core. Default: as joblib is configured, otherwise one.
            `joblib.parallel_config(backend="dask")` around the call, or `"ray"`, runs the replays
            on a cluster.

    Raises:
        SimulationError: joblib, which more than one process needs, is not installed.
    """
    try:
        import joblib  # from the extra `analysis`
    except ImportError:
        if jobs not in (None, 1):
            raise SimulationError(
                "more than one process needs joblib: pip install joblib, or use --jobs 1"
            ) from None
        return map(Experiment.run, experiments)
    # Some backends, such as Ray's, return all results at the end.
    streams = joblib.parallel.get_active_backend()[0].supports_return_generator
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    return iter(parallel(joblib.delayed(Experiment.run)(experiment) for experiment in experiments))
