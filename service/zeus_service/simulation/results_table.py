"""The table of a simulation's results: printed, with a legend, or written as CSV."""

import csv
import math
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Column, Table

from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.summary import Ratio, Summary

_LEGEND = (
    "cost: relative to always choosing the best batch size; first 30: the same for the first 30 "
    "recurrences; energy, time: relative to the default batch size at the largest power limit; "
    "wasted: failed trials per replay; final: the batch size chosen most often in the last ten "
    "recurrences"
)


def print_table(summaries: Sequence[Summary]) -> None:
    """Print the table, and below it what its columns mean and what was given up."""
    console = Console()
    console.print(table(summaries))
    console.print(legend(summaries), style="dim", highlight=False)


def legend(summaries: Sequence[Summary]) -> str:
    """The meaning of the table's columns, and the recurrences that were given up."""
    given_up = [
        f"{row.workload} {row.gpu} with {row.policy} gave up {row.given_up:.1f} recurrences of a "
        f"replay after {MAX_TRIES} tries each, so its cost is not comparable: some "
        "recurrences never reached the target"
        for row in summaries
        if row.given_up
    ]
    none_left = [
        f"{row.workload} {row.gpu} with {row.policy}: gave up in {row.none_left} of {row.replays} "
        "replays, which its figures leave out: every batch size that it tries had failed. Allow "
        "more epochs or a larger --beta, or take a --target that is reached"
        for row in summaries
        if row.none_left
    ]
    unknown = dict.fromkeys(
        f"{row.workload} {row.gpu}: no recorded run of the default batch size reaches the target, "
        "so there is no energy and time to compare with"
        for row in summaries
        if math.isnan(row.energy.value) and row.none_left < row.replays
    )
    return "\n".join([_LEGEND, *given_up, *none_left, *unknown])


def table(summaries: Sequence[Summary]) -> Table:
    """The printed table: under each workload, a line for each policy."""
    names = ("cost", "first 30", "energy", "time", "wasted", "final")
    columns = [Column("workload, policy", overflow="fold")]
    columns += [Column(name, no_wrap=True, justify="right") for name in names]
    result = Table(*columns, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for workload, rows in groupby(summaries, key=lambda row: f"{row.workload} {row.gpu}"):
        result.add_row(workload)
        for row in rows:
            result.add_row(
                f"  {row.policy}",
                _with_error(row.cost) if row.none_left < row.replays else "gave up",
                _or_dash(row.early_cost.value, 3),
                _or_dash(row.energy.value, 2),
                _or_dash(row.time.value, 2),
                f"{row.tries_wasted:.1f}",
                "-" if row.final is None else f"{row.final} {row.final_share:.0%}",
            )
    return result


def write_csv(file: TextIO, summaries: Sequence[Summary]) -> None:
    """Write the table with all digits and standard errors."""
    rows: list[dict[str, object]] = []
    for summary in summaries:
        rows.append({})
        for name, value in vars(summary).items():
            if isinstance(value, Ratio):
                rows[-1] |= {name: value.value, f"{name}_error": value.error}
            else:
                rows[-1][name] = value
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _or_dash(value: float, decimals: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{decimals}f}"


def _with_error(ratio: Ratio) -> str:
    error = "" if math.isnan(ratio.error) else f"±{ratio.error:.3f}".replace("±0.", "±.")
    return f"{ratio.value:.3f}{error}"
