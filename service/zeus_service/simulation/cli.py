"""`zeus-service simulate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click
from pydantic import ValidationError

from zeus_service.bandit.registry import POLICIES
from zeus_service.errors import Unusable
from zeus_service.simulation import recordings, result_tables
from zeus_service.simulation.experiment import Experiment, run_all
from zeus_service.simulation.recordings import (
    RECIPES,
    Recipe,
    first_error,
)
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

_ABOVE_ZERO = click.IntRange(min=1)
_COUNT = click.IntRange(1, 1_000_000)
_SEED = click.IntRange(min=0)
_POLICY = click.Choice(list(POLICIES))


@click.command(context_settings={"show_default": True})
@click.option(
    "--traces",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with recorded runs: summary_train.csv and summary_power_GPU.csv.",
)
@click.option(
    "--gpu", "gpus", multiple=True, help="Replay the runs recorded on this GPU.  [default: all]"
)
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice(list(RECIPES)),
    help="Replay this workload of the Zeus paper.  [default: all]",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    type=(str, str, str, float, _ABOVE_ZERO, _ABOVE_ZERO),
    metavar="DATASET NETWORK OPTIMIZER TARGET MAX_EPOCHS DEFAULT_BATCH_SIZE",
    help="Replay another recorded workload.",
)
@click.option(
    "--synthetic",
    "still",
    multiple=True,
    type=_SEED,
    metavar="N",
    help="Replay the N-th synthetic workload.  [default: 0, 1 and 2 if no workload is named]",
)
@click.option(
    "--drifting",
    multiple=True,
    type=_SEED,
    metavar="N",
    help="Replay the N-th synthetic workload whose optimum moves.",
)
@click.option("--policy", "policies", multiple=True, type=_POLICY, help="A policy.  [default: all]")
@click.option("--seeds", default=20, type=_COUNT, help="Replays per workload and policy.")
@click.option(
    "--recurrences",
    type=_COUNT,
    help="Recurrences per replay.  [default: 2 x batch sizes x power limits, as in the paper]",
)
@click.option("--eta", "eta_knob", default=0.5, help="Weight of energy against time, 0 to 1.")
@click.option(
    "--beta",
    "beta_knob",
    default=2.0,
    help="Stop a run before it costs more than this factor times the best batch size's cost; 1e9 "
    "disables early stopping.",
)
@click.option(
    "--window-size",
    default=0,
    help="With policy zeus, use only the latest N runs of each batch size; 0: all.",
)
@click.option(
    "--learn-target",
    is_flag=True,
    help="Learn the target from the first recurrences, which train past it.",
)
@click.option(
    "--csv",
    "table",
    type=click.File("a", encoding="utf-8"),  # opened before the replays, emptied after them
    help="Write a row for each replay to this file.",
)
@click.option("--jobs", default=1, type=_ABOVE_ZERO, help="Number of processes.")
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Run the replays on the workers of this Dask scheduler, not in local processes.",
)
def simulate(
    *,
    directory: Path | None,
    gpus: tuple[str, ...],
    names: tuple[str, ...],
    recipes: tuple[tuple[Any, ...], ...],
    still: tuple[int, ...],
    drifting: tuple[int, ...],
    policies: tuple[str, ...],
    seeds: int,
    recurrences: int | None,
    learn_target: bool,
    table: TextIO | None,
    jobs: int,
    dask: str | None,
    **knobs: float,
) -> None:
    """Replay recurring jobs, and print what each policy spends.

    The jobs are recorded ones (--traces) or synthetic ones. No service is needed.
    """
    workloads = [synthetic_workload(number) for number in still]
    workloads += [drifting_workload(number) for number in drifting]
    if directory is not None:
        chosen = [*(RECIPES[name] for name in names), *(Recipe(*each) for each in recipes)]
        workloads += _recorded(directory, gpus, chosen)
    elif gpus or names or recipes:
        raise click.UsageError("recorded runs need a directory; pass it with --traces")
    elif not workloads:
        workloads = [synthetic_workload(number) for number in range(3)]
    target = {"target_metric": None} if learn_target else {}
    try:
        experiments = [
            Experiment(
                workload,
                workload.spec(policy=policy, seed=seed, **knobs, **target),
                recurrences or workload.horizon,
            )
            for workload in workloads
            for policy in dict.fromkeys(policies or POLICIES)
            for seed in range(seeds)
        ]
    except ValidationError as error:
        raise Unusable(first_error(error)) from error
    tallies = list(run_all(experiments, jobs, dask))
    result_tables.print_table(tallies)
    if table is not None:
        if table.seekable():  # not a terminal or a pipe
            table.truncate(0)
        result_tables.write_csv(table, tallies)


def _recorded(directory: Path, gpus: Sequence[str], recipes: Sequence[Recipe]) -> list[Workload]:
    """The workloads in a directory: those of the paper if there are no `recipes`."""
    workloads = [
        recordings.read(directory, gpu, recipe)
        for gpu in gpus or recordings.gpus(directory)
        for recipe in recipes or recordings.paper_recipes(directory, gpu)
    ]
    if not workloads:
        raise Unusable(
            f"{directory} contains no workload of the Zeus paper; describe yours with --recipe"
        )
    return workloads
