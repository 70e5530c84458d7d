"""`zeus-service simulate`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from zeus_service.policies import POLICIES
from zeus_service.simulation import plots, report, submissions, synthetic, traces
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.experiment import Experiment, run_all
from zeus_service.simulation.machine import Trial
from zeus_service.simulation.reported import HttpDoor, LocalDoor, replay_reported
from zeus_service.simulation.series import series
from zeus_service.simulation.summary import Tally, summarize, tally
from zeus_service.simulation.workload import Drift, Workload
from zeus_service.spec import JobSpec

P = ParamSpec("P")
R = TypeVar("R")
AnyWorkload = Workload | Drift
_MADE_UP = ("synthetic-0", "synthetic-1", "synthetic-2")
_GROUPS = 10
_PATH = click.Path(dir_okay=False, path_type=Path)


def _one_message(command: Callable[P, R]) -> Callable[P, R]:
    """End the command on an expected error with its message alone."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SimulationError as error:
            raise click.ClickException(str(error)) from error

    return wrapper


@click.command()
@click.option(
    "--traces",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with recorded runs: summary_train.csv and summary_power_GPU.csv.",
)
@click.option("--synthetic", "made_up", is_flag=True, help="Take made-up workloads instead.")
@click.option("--gpu", "gpus", multiple=True, help="A GPU of the recorded runs.  [default: all]")
@click.option(
    "--workload",
    "names",
    multiple=True,
    metavar="NAME",
    help="A dataset of the recorded runs, or DATASET/NETWORK/OPTIMIZER; or synthetic-N, for any "
    "number N.  [default: all those of the Zeus paper; three made-up ones]",
)
@click.option("--target", type=float, help="Target metric.  [default: the paper's of the workload]")
@click.option(
    "--max-epochs",
    type=click.IntRange(min=1),
    help="Epochs after which a run has failed.  [default: the paper's of the workload]",
)
@click.option(
    "--default-batch-size",
    type=click.IntRange(min=1),
    help="Where exploration starts.  [default: the paper's of the workload]",
)
@click.option("--policy", "policies", multiple=True, help="A policy.  [default: all]")
@click.option(
    "--seeds",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Replays of each workload with each policy.",
)
@click.option(
    "--recurrences",
    type=click.IntRange(1, 1_000_000),
    help="Of each replay.  [default: 2 x batch sizes x power limits, as in the paper]",
)
@click.option(
    "--eta",
    "eta_knob",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Weight of energy against time.",
)
@click.option(
    "--beta",
    "beta_knob",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="A run that would cost more than this times the best cost is stopped.",
)
@click.option(
    "--window-size",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Latest runs of a batch size that count; 0: all.",
)
@click.option("--drift", is_flag=True, help="Made-up workloads whose optimum moves.")
@click.option(
    "--cluster",
    metavar="FILE|synthetic",
    help="Overlapping submissions: a .csv or .csv.xz with the columns group, start_time, end_time, "
    "dataset, runtime_ratio; or made-up ones.",
)
@click.option("--csv", "csv_path", type=_PATH, help="Write the table to this file.")
@click.option("--plot", "plot_path", type=_PATH, help="Write figures to this HTML file.")
@click.option(
    "--jobs",
    type=int,
    default=1,
    show_default=True,
    help="Processes, more than one needs joblib; -1: one per core.",
)
@click.option(
    "--service",
    metavar="URL",
    help="Also send the first seed's recurrences to this service, and say whether it chooses alike."
    "  ZEUS_BSO_TOKEN is its token.",
)
@_one_message
def simulate(
    *,
    directory: Path | None,
    made_up: bool,
    gpus: tuple[str, ...],
    names: tuple[str, ...],
    target: float | None,
    max_epochs: int | None,
    default_batch_size: int | None,
    policies: tuple[str, ...],
    seeds: int,
    recurrences: int | None,
    eta_knob: float,
    beta_knob: float,
    window_size: int,
    drift: bool,
    cluster: str | None,
    csv_path: Path | None,
    plot_path: Path | None,
    jobs: int,
    service: str | None,
) -> None:
    """Replay recurring jobs, and say what each policy would have spent.

    Without a service and without waiting: on recorded runs (--traces), or made-up ones
    (--synthetic).
    """
    if (directory is None) != made_up or (drift and not made_up):
        raise SimulationError(
            "name recorded runs with --traces DIR, or take --synthetic, with --drift if you like"
        )
    if jobs == 0:
        raise SimulationError("--jobs 0 is no number of processes; take 1 or more, or -1 for all")
    if plot_path is not None:
        plots.require_plotly()
    for path in (csv_path, plot_path):  # now, not when all is replayed
        if path is not None and not path.parent.is_dir():
            raise SimulationError(f"{path} cannot be written: there is no folder {path.parent}")
    groups = _groups(cluster, names)
    if groups and not names:
        names = tuple(dict.fromkeys(group.dataset for group in groups))
    if directory is None:
        workloads = [_synthetic(name, drift) for name in names or _MADE_UP]
    else:
        own = {"target": target, "max_epochs": max_epochs, "default": default_batch_size}
        workloads = _recorded(directory, gpus, names, own)
    for workload in workloads:
        _say_what_is_left_out(workload)
    knobs = {"eta_knob": eta_knob, "beta_knob": beta_knob, "window_size": window_size}
    specs = [
        (workload, _spec(workload, policy, knobs))
        for workload in workloads
        for policy in _known(policies)
    ]
    if cluster == "synthetic":
        groups = submissions.made_up(
            list(dict.fromkeys(workload.name for workload in workloads)),
            seed=0,
            groups=_GROUPS * len({workload.name for workload in workloads}),
            submissions=recurrences or 100,
        )
    experiments = [
        experiment
        for workload, spec in specs
        for experiment in _experiments(workload, spec, seeds, recurrences, groups)
    ]
    tallies: list[Tally] = []
    kept: list[tuple[Experiment, list[Trial]]] = []
    for experiment, trials in _replays(experiments, jobs):
        tallies.append(tally(experiment, trials))
        if plot_path is not None:
            kept.append((experiment, trials))
    summaries = summarize(tallies)
    console = Console()
    console.print(report.table(summaries))
    console.print(report.legend(summaries), style="dim", highlight=False)
    if csv_path is not None:
        report.write_csv(csv_path, summaries)
    if plot_path is not None:
        plots.write_page(plot_path, series(kept))
    if service is not None:
        _compare(service, specs, recurrences)


def _groups(cluster: str | None, names: Sequence[str]) -> list[submissions.Group]:
    """The groups of a file, of the workloads named."""
    if cluster in (None, "synthetic"):
        return []
    groups = submissions.read(Path(str(cluster)))
    datasets = {name.partition("/")[0] for name in names}
    named = [group for group in groups if not names or group.dataset in datasets]
    if not named:
        known = ", ".join(sorted({group.dataset for group in groups}))
        raise SimulationError(
            f"{cluster}: no group of {', '.join(names)}; take --workload of {known}"
        )
    return named


def _recorded(
    directory: Path, gpus: Sequence[str], names: Sequence[str], own: dict[str, Any]
) -> list[AnyWorkload]:
    workloads: list[AnyWorkload] = []
    for gpu in gpus or traces.gpus(directory):
        known = [name for name in traces.datasets(directory, gpu) if name in traces.RECIPES]
        if not (names or known):
            raise SimulationError(
                f"{directory}: no workload of the Zeus paper in it; name one with --workload "
                "DATASET/NETWORK/OPTIMIZER, --target, --max-epochs and --default-batch-size"
            )
        workloads += [
            traces.read(directory, gpu, traces.recipe(name, **own)) for name in names or known
        ]
    return workloads


def _synthetic(name: str, drift: bool) -> AnyWorkload:
    kind, _, number = name.rpartition("-")
    if kind != "synthetic" or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise SimulationError(
            f"workload {name!r} is not a made-up one; they are called synthetic-0, synthetic-1, ..."
        )
    return synthetic.drifting(int(number)) if drift else synthetic.synthetic(int(number))


def _known(policies: Sequence[str]) -> list[str]:
    for name in policies:
        if name not in POLICIES:
            raise SimulationError(
                f"policy {name!r} is not known; take --policy of {', '.join(POLICIES)}"
            )
    return list(dict.fromkeys(policies or POLICIES))


def _spec(workload: AnyWorkload, policy: str, knobs: dict[str, Any]) -> JobSpec:
    try:
        return workload.spec(policy=policy, **knobs)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        raise SimulationError(
            f"{workload.name} on {workload.gpu}: {name} is {wrong['input']!r}: {wrong['msg']}"
        ) from error


def _say_what_is_left_out(workload: AnyWorkload) -> None:
    if isinstance(workload, Workload) and workload.left_out:
        click.echo(
            f"{workload.name} {workload.gpu}: batch sizes {', '.join(map(str, workload.left_out))} "
            "have runs but no power data: left out",
            err=True,
        )


def _experiments(
    workload: AnyWorkload,
    spec: JobSpec,
    seeds: int,
    recurrences: int | None,
    groups: Sequence[submissions.Group],
) -> list[Experiment]:
    def seeded(seed: int) -> JobSpec:
        return spec.model_copy(update={"seed": seed % 2**32})

    if not groups:
        return [
            Experiment(workload, seeded(seed), recurrences or workload.horizon)
            for seed in range(seeds)
        ]
    return [
        Experiment(
            workload,
            seeded(zlib.adler32(group.name.encode()) + seed),
            group.submissions[:recurrences],
        )
        for group in groups
        if group.dataset == workload.name
        for seed in range(seeds)
    ]


def _replays(
    experiments: Sequence[Experiment], jobs: int
) -> Iterator[tuple[Experiment, list[Trial]]]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=sum(each.recurrences for each in experiments))
        for experiment, trials in zip(experiments, run_all(experiments, jobs), strict=True):
            progress.advance(task, experiment.recurrences)
            yield experiment, trials


def _compare(
    url: str, specs: Sequence[tuple[AnyWorkload, JobSpec]], recurrences: int | None
) -> None:
    """Whether a service gives the same history as its functions in this process."""
    for workload, spec in specs:
        own_id = f"{spec.job_id[:200]}-{os.urandom(6).hex()}"
        job = spec.model_copy(update={"seed": 0, "job_id": own_id})
        name = f"{workload.name} {workload.gpu} {spec.policy}"
        length = recurrences or workload.horizon
        here = replay_reported(workload, job, length, LocalDoor(job))
        with HttpDoor(url, job, os.environ.get("ZEUS_BSO_TOKEN")) as door:
            there = replay_reported(workload, job, length, door)
        for mine, theirs in zip(here, there, strict=False):
            if mine != theirs:
                raise SimulationError(f"{name}: {url} gave {theirs}, and not {mine}")
        click.echo(f"{name}: {url} gave the same {len(there)} trials")
