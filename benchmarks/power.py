"""Compare the searches for a power limit, `sweep` and `bracket`: windows, joules and regret.

Run it with `python benchmarks/power.py --traces FOLDER`, where the folder holds the Zeus paper's
`summary_power_*.csv` (repository ml-energy/zeus, `trace/`), or set ZEUS_TRACES. Without them, only
synthetic loads are searched.

Windows are a fraction of the sweep's. Regret is the cost of the chosen limit divided by that of the
best one, minus one; the best one of a recorded load is the best recorded, that of a synthetic
load the best without noise. Joules include the windows and their warm-up, for windows that last two
seconds at the highest limit.
"""

from __future__ import annotations

import csv
import math
import os
import random
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from zeus_lightning.power.search import SearchName, make_search, power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost, parse_selector

Curve = dict[int, PowerPoint]
"""What a search would measure, for each limit."""

WINDOW_S = 2.0
WARMUP = 10 / 40
"""Batches of warm-up as a fraction of those of a window."""

RUNS: tuple[tuple[SearchName, bool], ...] = (
    ("sweep", False),
    ("bracket", False),
    ("bracket", True),
)
"""Searches, and whether they start from the neighbour's optimum."""


@dataclass(frozen=True)
class Load:
    """A load whose best limit is searched for.

    Args:
        name: Shown to the reader.
        measured: What a search measures.
        truth: The same without noise, if known.
        start_w: The optimum of the nearest batch size, None where there is no other.
    """

    name: str
    measured: Curve
    truth: Curve
    start_w: int | None


@dataclass(frozen=True)
class Outcome:
    """The result of one search on one load, in the terms of the module's docstring."""

    load: Load
    measured_w: list[int]
    chosen_w: int
    regret: float
    joules: float

    @property
    def share(self) -> float:
        """Number of windows as a fraction of the sweep's."""
        return len(self.measured_w) / len(self.load.measured)


def search_load(
    load: Load, name: SearchName, *, warm: bool, selector_name: str = "zeus-cost", eta: float = 0.5
) -> Outcome:
    """Search as the profiler does; if `warm`, starting at the neighbour's optimum."""
    selector, inputs = parse_selector(selector_name), _inputs(load.measured, eta)
    start_w = load.start_w if warm else None
    search = make_search(name, list(load.measured), selector, inputs, start_w)
    points: list[PowerPoint] = []
    while (limit_w := search(points)) is not None:
        points.append(load.measured[limit_w])
    chosen_w = selector.select(points, inputs)
    best_w = selector.select(list(load.truth.values()), inputs)
    chosen, best = (
        selector.cost(load.truth[limit], inputs) if hasattr(selector, "cost") else float(limit)
        for limit in (chosen_w, best_w)
    )
    highest = load.measured[max(load.measured)]
    batches = (1 + WARMUP) * WINDOW_S / highest.time_s
    joules = batches * sum(point.energy_j for point in points)
    return Outcome(load, [p.limit_w for p in points], chosen_w, chosen / best - 1, joules)


def recorded_loads(folder: Path, eta: float = 0.5) -> list[Load]:
    """Load the recorded runs: one load for each GPU, workload, optimizer and batch size.

    Raises:
        FileNotFoundError: The folder holds no `summary_power_*.csv`.
    """
    families: dict[tuple[str, ...], dict[int, Curve]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("summary_power_*.csv")):
        gpu = path.stem.removeprefix("summary_power_")
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                family = (gpu, row["dataset"], row["network"], row["optimizer"])
                limit_w, time_s = int(row["power_limit"]), float(row["time_per_epoch"])
                point = PowerPoint(limit_w, float(row["average_power"]) * time_s, time_s)
                families[family][int(row["batch_size"])][limit_w] = point
    if not families:
        raise FileNotFoundError(f"{folder} holds no summary_power_*.csv")
    return [
        Load(f"{' '.join(family)} {size}", curve, curve, _neighbours_optimum(sizes, size, eta))
        for family, sizes in families.items()
        for size, curve in sizes.items()
    ]


def synthetic_loads(
    limits_w: tuple[int, ...], count: int = 500, noise: float = 0.02, seed: int = 0
) -> Iterator[Load]:
    """Loads of a GPU whose clock falls until its power is within the limit.

    At relative clock f in (0, 1] a GPU draws P = P_idle + (P_free - P_idle) f^a, with a of 1.5 to
    3, and a batch takes T = m + (1 - m) / f, where m is the part that waits for memory or the host.
    Each measured power and time is off by a normal error of `noise`. The start is the optimum of
    the same load with another share of the power, as another batch size has.
    """
    rng = random.Random(seed)
    for number in range(count):
        idle_w = rng.uniform(0.08, 0.3) * min(limits_w[0], 2 * limits_w[-1])
        free_w = max(rng.uniform(0.35, 1.15) * limits_w[0], 1.2 * idle_w)
        exponent, waiting = rng.uniform(1.5, 3), rng.uniform(0, 0.8)
        truth = _true_load(limits_w, idle_w, free_w, exponent, waiting)
        other = _true_load(limits_w, idle_w, free_w * rng.uniform(0.8, 1.1), exponent, waiting)
        measured = {
            limit: PowerPoint(
                limit,
                p.energy_j * rng.gauss(1, noise) * (slow := rng.gauss(1, noise)),
                p.time_s * slow,
            )
            for limit, p in truth.items()
        }
        yield Load(f"synthetic {number}", measured, truth, _optimum(other, 0.5))


def _true_load(
    limits_w: tuple[int, ...], idle_w: float, free_w: float, exponent: float, waiting: float
) -> Curve:
    curve = {}
    for limit in limits_w:
        power_w = min(limit, free_w)
        clock = max(0.05, (power_w - idle_w) / (free_w - idle_w)) ** (1 / exponent)
        time_s = waiting + (1 - waiting) / clock
        curve[limit] = PowerPoint(limit, power_w * time_s, time_s)
    return curve


def _inputs(curve: Curve, eta: float) -> SelectorInputs:
    return SelectorInputs(eta_knob=eta, max_power_w=max(curve))


def _optimum(curve: Curve, eta: float) -> int:
    return ZeusCost().select(list(curve.values()), _inputs(curve, eta))


def _neighbours_optimum(sizes: dict[int, Curve], size: int, eta: float) -> int | None:
    """Return the best limit of the nearest batch size by ratio, the smaller of two."""
    others = [other for other in sizes if other != size]
    if not others:
        return None
    nearest = min(others, key=lambda other: (abs(math.log(other / size)), other))
    return _optimum(sizes[nearest], eta)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("ZEUS_TRACES"))
    parser.add_argument("--eta", type=float, default=0.5)
    arguments = parser.parse_args()
    wide, narrow = power_limits(200, 700, 25), power_limits(100, 250, 25)
    sets = {
        "synthetic, 200 to 700 W": list(synthetic_loads(wide)),
        "synthetic, 100 to 250 W": list(synthetic_loads(narrow)),
    }
    if arguments.traces:
        sets = {"recorded": recorded_loads(Path(arguments.traces), arguments.eta), **sets}

    table = Table(title=f"Finding the power limit of lowest cost, eta {arguments.eta:g}")
    for heading in ("loads", "search", "start"):
        table.add_column(heading)
    for heading in (
        "windows",
        "of sweep",
        "most",
        "joules",
        "regret",
        "p95",
        "worst",
        "within 1 %",
    ):
        table.add_column(heading, justify="right")
    for title, loads in sets.items():
        for name, warm in RUNS:
            asked = [load for load in loads if load.start_w is not None or not warm]
            outcomes = [search_load(load, name, warm=warm, eta=arguments.eta) for load in asked]
            regrets = sorted(outcome.regret for outcome in outcomes)
            table.add_row(
                f"{title}: {len(outcomes)}",
                name,
                "neighbour" if warm else "cold",
                f"{fmean(len(outcome.measured_w) for outcome in outcomes):.1f}",
                f"{fmean(outcome.share for outcome in outcomes):.2f}",
                f"{max(outcome.share for outcome in outcomes):.2f}",
                f"{fmean(outcome.joules for outcome in outcomes):.0f}",
                f"{100 * fmean(regrets):.2f} %",
                f"{100 * regrets[int(0.95 * len(regrets))]:.2f} %",
                f"{100 * regrets[-1]:.2f} %",
                f"{fmean(regret <= 0.01 for regret in regrets):.1%}",
            )
        table.add_section()
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
