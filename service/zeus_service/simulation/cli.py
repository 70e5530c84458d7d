"""`zeus-service simulate`."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track

from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation import (
    SimulationError,
    plots,
    recorded_runs,
    results_table,
    submissions,
)
from zeus_service.simulation.experiment import Experiment, run_all
from zeus_service.simulation.summary import summarize, tally
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

_SYNTHETIC = ("synthetic-0", "synthetic-1", "synthetic-2")
_GROUPS = 10
_OUTPUT = click.File("a", encoding="utf-8")  # opened before the replays, emptied after them
_ABOVE_ZERO = click.IntRange(min=1)
_COUNT = click.IntRange(1, 1_000_000)
_POLICY = click.Choice(list(POLICIES))


class _Beta(click.FloatRange):
    """A number above zero, or `none` for None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "none" else super().convert(value, param, ctx)


@click.command(context_settings={"show_default": True})
@click.option(
    "--traces",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with recorded runs: summary_train.csv and summary_power_GPU.csv.",
)
@click.option("--synthetic", is_flag=True, help="Use synthetic workloads instead.")
@click.option("--gpu", "gpus", multiple=True, help="A GPU of the recorded runs.  [default: all]")
@click.option(
    "--workload",
    "names",
    multiple=True,
    metavar="NAME",
    help="A dataset of the recorded runs, or DATASET/NETWORK/OPTIMIZER; or synthetic-N, for any "
    "number N.  [default: the Zeus paper's workloads; three synthetic ones]",
)
@click.option("--target", type=float, help="Target metric.  [default: the paper's of the workload]")
@click.option(
    "--max-epochs",
    type=_ABOVE_ZERO,
    help="Epochs after which a run has failed.  [default: the paper's of the workload]",
)
@click.option(
    "--default-batch-size",
    "default",
    type=_ABOVE_ZERO,
    help="The batch size from which exploration starts.  [default: the paper's of the workload]",
)
@click.option("--policy", "policies", multiple=True, type=_POLICY, help="A policy.  [default: all]")
@click.option("--seeds", default=20, type=_COUNT, help="Replays of each workload with each policy.")
@click.option(
    "--recurrences",
    type=_COUNT,
    help="Recurrences per replay.  [default: 2 x batch sizes x power limits, as in the paper]",
)
@click.option(
    "--eta",
    "eta_knob",
    default=0.5,
    type=click.FloatRange(0, 1),
    help="Weight of energy against time.",
)
@click.option(
    "--beta",
    "beta_knob",
    default=2.0,
    type=_Beta(0, min_open=True),
    help="Stop a run before it costs more than this times the best cost; none: stop no run.",
)
@click.option(
    "--window-size",
    default=0,
    type=click.IntRange(0, 1000),
    help="Use only this many of the latest runs of each batch size; 0: all.",
)
@click.option("--drift", is_flag=True, help="Synthetic workloads whose optimum moves.")
@click.option(
    "--cluster",
    metavar="FILE|synthetic",
    help="Overlapping submissions: a .csv or .csv.xz with the columns group, start_time, end_time, "
    "dataset, runtime_ratio; or synthetic ones.",
)
@click.option("--csv", "table", type=_OUTPUT, help="Write the table to this file.")
@click.option("--plot", "page", type=_OUTPUT, help="Write figures to this HTML file.")
@click.option("--jobs", default=1, help="Processes (more than one needs joblib); -1: one per core.")
def simulate(
    *,
    directory: Path | None,
    synthetic: bool,
    gpus: tuple[str, ...],
    names: tuple[str, ...],
    target: float | None,
    max_epochs: int | None,
    default: int | None,
    policies: tuple[str, ...],
    seeds: int,
    recurrences: int | None,
    drift: bool,
    cluster: str | None,
    table: TextIO | None,
    page: TextIO | None,
    jobs: int,
    **knobs: float | None,
) -> None:
    """Replay recurring jobs, and print what each policy spends.

    The jobs are recorded ones (--traces) or synthetic ones (--synthetic). No service is needed.
    """
    if (directory is None) != synthetic or (drift and not synthetic):
        raise SimulationError(
            "name recorded runs with --traces DIR, or take --synthetic, with --drift if you like"
        )
    recorded_only: dict[str, object]
    recorded_only = {"gpu": gpus, "target": target, "max-epochs": max_epochs}
    recorded_only["default-batch-size"] = default
    given = [f"--{name}" for name, value in recorded_only.items() if value]
    if synthetic and given:
        raise SimulationError(
            f"{', '.join(given)}: only for recorded runs; leave it out with --synthetic"
        )
    if jobs == 0:
        raise SimulationError("--jobs must be at least 1, or -1 for all cores")
    if page is not None:
        plots.require_plotly()
    groups = _groups(cluster, names)
    if groups and not names:
        names = tuple(dict.fromkeys(group.dataset for group in groups))
    if directory is None:
        workloads = [_synthetic(name, drift) for name in names or _SYNTHETIC]
    else:
        own = {"target": target, "max_epochs": max_epochs, "default": default}
        workloads = _recorded(directory, gpus, names, own)
    specs = [
        (workload, _spec(workload, policy, knobs))
        for workload in workloads
        for policy in dict.fromkeys(policies or POLICIES)
    ]
    if cluster == "synthetic":
        datasets = list(dict.fromkeys(workload.name for workload in workloads))
        groups = submissions.synthetic_groups(
            datasets, seed=0, groups=_GROUPS * len(datasets), submissions=recurrences or 100
        )
    experiments = [
        experiment
        for workload, spec in specs
        for experiment in _experiments(workload, spec, seeds, recurrences, groups)
    ]
    console = Console(stderr=True)
    replays = track(
        zip(experiments, run_all(experiments, jobs), strict=True),
        "replaying",
        total=len(experiments),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tallies = [tally(*replay) for replay in replays]
    summaries = summarize(tallies)
    results_table.print_table(summaries)
    if table is not None:
        table.truncate(0)
        results_table.write_csv(table, summaries)
    if page is not None:
        page.truncate(0)
        plots.write_page(page, plots.curves([each for each in tallies if not each.none_left]))


def _groups(cluster: str | None, names: Sequence[str]) -> list[submissions.Group]:
    """The groups in a file that train one of the workloads."""
    if cluster is None or cluster == "synthetic":
        return []
    groups = submissions.read(Path(cluster))
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
) -> list[Workload]:
    workloads: list[Workload] = []
    for gpu in gpus or recorded_runs.gpus(directory):
        if not (chosen := names or recorded_runs.paper_workloads(directory, gpu)):
            raise SimulationError(
                f"{directory}: no workload of the Zeus paper in it; name one with --workload "
                "DATASET/NETWORK/OPTIMIZER, --target, --max-epochs and --default-batch-size"
            )
        recipes = [recorded_runs.recipe(name, **own) for name in chosen]
        workloads += [recorded_runs.read(directory, gpu, recipe) for recipe in recipes]
    for note in [note for workload in workloads for note in workload.notes]:
        click.echo(note, err=True)
    return workloads


def _synthetic(name: str, drift: bool) -> Workload:
    kind, _, number = name.rpartition("-")
    if kind != "synthetic" or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise SimulationError(
            f"workload {name!r} is not synthetic; those are named synthetic-0, synthetic-1, ..."
        )
    return drifting_workload(int(number)) if drift else synthetic_workload(int(number))


def _spec(workload: Workload, policy: str, knobs: dict[str, Any]) -> JobSpec:
    try:
        return workload.spec(policy=policy, **knobs)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        raise SimulationError(
            f"{workload.name} on {workload.gpu}: {name} is {wrong['input']!r:.60}: {wrong['msg']}"
        ) from error


def _experiments(
    workload: Workload,
    spec: JobSpec,
    seeds: int,
    recurrences: int | None,
    groups: Sequence[submissions.Group],
) -> list[Experiment]:
    replays: list[tuple[int, int | Sequence[submissions.Submission]]]
    replays = [(0, recurrences or workload.horizon)]
    if groups:
        replays = [
            (zlib.adler32(group.name.encode()), group.submissions[:recurrences])
            for group in groups
            if group.dataset == workload.name
        ]
    return [
        Experiment(workload, spec.model_copy(update={"seed": (first + seed) % 2**32}), submitted)
        for first, submitted in replays
        for seed in range(seeds)
    ]
