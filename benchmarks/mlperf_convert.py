"""Convert MLCommons' reference convergence points to the CSV file that `--mlperf` reads.

Run `python benchmarks/mlperf_convert.py logging > convergence.csv` with a checkout of
github.com/mlcommons/logging. Of each benchmark, the newest round that has it is taken. MLCommons
calls all values epochs, also where they are samples.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILES = "mlperf_logging/rcp_checker/*/rcps_*.json"


class Run(NamedTuple):
    """A row: a run, and what it took to the target."""

    benchmark: str
    round: str
    batch_size: int
    unit: str
    to_target: float


def runs_of(file: Path) -> Iterator[Run]:
    """Read the runs of a file, whose directory is named after the round."""
    for entry in json.loads(file.read_text(encoding="utf-8")).values():
        for name, values in entry.items():
            if unit := re.fullmatch(r"(\w+) to converge", name):
                for value in values:
                    yield Run(
                        entry["Benchmark"],
                        file.parent.name,
                        int(entry["BS"]),
                        unit[1].lower(),
                        value,
                    )


def newest(runs: list[Run]) -> list[Run]:
    """Keep each benchmark's newest round; order the runs by round, benchmark and batch size."""
    latest: dict[str, str] = {}
    for run in runs:
        latest[run.benchmark] = max(latest.get(run.benchmark, ""), run.round, key=version)
    kept = [run for run in runs if run.round == latest[run.benchmark]]
    return sorted(kept, key=lambda run: (version(run.round), run.benchmark, run.batch_size))


def version(round_: str) -> list[int]:
    """Return [6, 0, 0] of `training_6.0.0`."""
    return [int(number) for number in re.findall(r"\d+", round_)]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="checkout of github.com/mlcommons/logging")
    parser.add_argument("--benchmark", action="append", help="default: all")
    arguments = parser.parse_args()
    files = sorted(arguments.directory.glob(FILES))
    if not files:
        parser.error(f"{arguments.directory}: no file {FILES}")
    runs = [run for file in files for run in runs_of(file)]
    wanted = arguments.benchmark
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(Run._fields)
    writer.writerows(run for run in newest(runs) if not wanted or run.benchmark in wanted)


if __name__ == "__main__":
    main()
