"""The results of a simulation: a table with a legend, or a CSV file with a row for each replay."""

import csv
import math
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from statistics import fmean
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Column, Table

from zeus_service.simulation.experiment import Key, Ratio, Tally, by_key, ratio, spent_over_oracle

EARLY = 30
"""Recurrences that count as the first ones."""

_LEGEND = (
    "cost, first 30: relative to always choosing the best batch size; energy, time: relative to "
    "the default at full power; wasted: failed trials per replay; final: the most frequent of the "
    "last ten choices"
)


def print_table(tallies: Iterable[Tally]) -> None:
    """Print under each workload a line for each policy, and below the table what it means.

    The ratios leave out a replay in which the policy had no batch size left to try.
    """
    names = ("cost", "first 30", "energy", "time", "wasted", "final")
    columns = [Column("workload, policy", overflow="fold")]
    columns += [Column(name, no_wrap=True, justify="right") for name in names]
    table = Table(*columns, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    notes = [_LEGEND]
    for (workload, gpu), rows in groupby(by_key(tallies).items(), key=lambda row: row[0][:2]):
        table.add_row(f"{workload} {gpu}")
        for key, replays in rows:
            complete = [each for each in replays if not each.none_left]
            if unreached := sum(each.unreached for each in replays):
                notes.append(
                    f"{workload} {gpu} with {key.policy}: recurrences that never reached the "
                    f"target: {unreached}; replays that gave up and are left out: "
                    f"{len(replays) - len(complete)} of {len(replays)}. Allow more epochs"
                )
            table.add_row(
                f"  {key.policy}",
                _with_error(spent_over_oracle(complete)) if complete else "gave up",
                f"{spent_over_oracle(complete, EARLY).value:.3f}",
                f"{ratio((each.energy_j, each.default_energy_j) for each in complete).value:.2f}",
                f"{ratio((each.time_s, each.default_time_s) for each in complete).value:.2f}",
                f"{fmean(each.failed for each in replays):.1f}",
                _most_often([size for each in replays for size in each.final]),
            )
    console = Console()
    console.print(table)
    console.print("\n".join(notes), style="dim", highlight=False)


def _with_error(cost: Ratio) -> str:
    error = "" if math.isnan(cost.error) else f"±{cost.error:.3f}".replace("±0.", "±.")
    return f"{cost.value:.3f}{error}"


def _most_often(sizes: list[int]) -> str:
    if not sizes:
        return "-"
    size, count = Counter(sizes).most_common(1)[0]
    return f"{size} {count / len(sizes):.0%}"


def write_csv(file: TextIO, tallies: Iterable[Tally]) -> None:
    """Write a row for each replay, with its sums over all recurrences."""
    writer = csv.writer(file, lineterminator="\n")
    columns = ("energy_j", "default_energy_j", "time_s", "default_time_s", "failed", "unreached")
    writer.writerow([*Key._fields, "seed", "recurrences", "cost_j", "oracle_cost_j", *columns])
    for each in tallies:
        costs = (math.fsum(each.costs), math.fsum(each.oracle_costs))
        values = (getattr(each, column) for column in columns)
        writer.writerow([*each.key, each.seed, len(each.costs), *costs, *values])
