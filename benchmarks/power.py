"""Compare searches for a power limit by what whole runs cost: `python benchmarks/power.py`.

The excess of a run is its cost over that of the same run at the best limit from its first batch,
minus one. Its length is counted in windows of measurement; a window at another limit than the one
before costs a quarter more, for the warm-up. The best limit of a load is the best without noise.

Loads are the recorded ones in `--traces FOLDER` or $ZEUS_TRACES, the Zeus paper's
`summary_power_*.csv` (repository ml-energy/zeus, `trace/`), and made-up ones of three ranges of
limits (`made_up_load`), some also with a disturbed first window (`disturb`). The constants of
`zeus_lightning/power/information.py` were chosen on even seeds (`--chosen-on`), and the ranges of
the model's parameters adjusted after looking at the recorded loads; odd seeds are only reported.
"""

from __future__ import annotations

import csv
import os
import random
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import track
from rich.table import Table

from zeus_lightning.power.search import Search, Sweep, make_search, power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost

Curve = dict[int, PowerPoint]
"""Energy and time of a batch at each limit, without noise."""

WARMUP = 10 / 40
"""Batches of warm-up as a fraction of those of a window."""

LENGTHS = (50, 500, 5000)
"""Lengths of runs, in windows."""

NOISES = (0.005, 0.02, 0.05)
ETAS = (0.0, 0.5, 1.0)
RANGES = ((100, 250), (200, 700), (400, 1000))


@dataclass(frozen=True)
class Load:
    """A load whose best limit is searched for.

    Args:
        name: Shown to the reader; also seeds the noise.
        truth: What a batch takes.
        disturbed: By what the time and the power of the first window are multiplied.
    """

    name: str
    truth: Curve
    disturbed: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Outcome:
    """The result of one search on one load.

    Args:
        measured_w: The limits of the windows, in order.
        chosen_w: The limit for the rest of the run.
        excess: See the module's docstring.
        regret: The same for the rest of the run alone.
    """

    measured_w: tuple[int, ...]
    chosen_w: int
    excess: float
    regret: float


def search_load(
    load: Load, name: str, windows: float, *, noise: float = 0.0, eta: float = 0.5
) -> Outcome:
    """Search as the profiler does."""
    rng = random.Random(f"{load.name} {noise} {eta}")
    selector, inputs = ZeusCost(), SelectorInputs(eta_knob=eta, max_power_w=max(load.truth))
    limits_w = tuple(load.truth)
    sweeps = name == "sweep"
    search: Search = Sweep(limits_w) if sweeps else make_search(limits_w, selector, inputs)
    points: list[PowerPoint] = []
    measured_w: list[int] = []
    while (left := windows / (1 + WARMUP) - len(measured_w)) > 0:
        limit_w = search.propose(points, left)
        if limit_w is None:
            break
        point = load.truth[limit_w]
        slower, more = (1.0, 1.0) if measured_w else load.disturbed
        slower, more = slower * rng.gauss(1, noise), more * rng.gauss(1, noise)
        if measured_w:  # the first window is used for nothing
            points.append(
                PowerPoint(limit_w, point.energy_j * slower * more, point.time_s * slower)
            )
        measured_w.append(limit_w)
    chosen_w = selector.select(search.estimates(points), inputs)
    return judge(load, measured_w, chosen_w, windows, eta)


def judge(
    load: Load, measured_w: Sequence[int], chosen_w: int, windows: float, eta: float
) -> Outcome:
    """Return what a run costs that measures some limits and then stays at one."""
    inputs = SelectorInputs(eta_knob=eta, max_power_w=max(load.truth))
    costs = {limit: ZeusCost().cost(point, inputs) for limit, point in load.truth.items()}
    best = min(costs.values())
    spent = excess = 0.0
    for before, limit in zip((None, *measured_w), measured_w, strict=False):
        length = 1 if limit == before else 1 + WARMUP
        spent += length
        excess += length * (costs[limit] / best - 1)
    regret = costs[chosen_w] / best - 1
    excess += max(0.0, windows - spent) * regret
    return Outcome(tuple(measured_w), chosen_w, excess / windows, regret)


def recorded_loads(folder: Path) -> list[Load]:
    """Load the recorded runs: one load for each GPU, workload, optimizer and batch size.

    Raises:
        FileNotFoundError: The folder holds no `summary_power_*.csv`.
    """
    curves: dict[str, Curve] = defaultdict(dict)
    for path in sorted(folder.glob("summary_power_*.csv")):
        gpu = path.stem.removeprefix("summary_power_")
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                load = (gpu, row["dataset"], row["network"], row["optimizer"], row["batch_size"])
                limit_w, time_s = int(row["power_limit"]), float(row["time_per_epoch"])
                point = PowerPoint(limit_w, float(row["average_power"]) * time_s, time_s)
                curves[" ".join(load)][limit_w] = point
    if not curves:
        raise FileNotFoundError(f"{folder} holds no summary_power_*.csv")
    return [Load(name, curve) for name, curve in curves.items()]


def made_up_loads(range_w: tuple[int, int], count: int, *, reported: bool = True) -> Iterator[Load]:
    """Make up loads of GPUs with a range of limits, in steps of 25 W."""
    for seed in range(int(reported), 2 * count, 2):
        yield made_up_load(power_limits(*range_w, 25), seed)


def made_up_load(limits_w: tuple[int, ...], seed: int) -> Load:
    """Make up a load of a GPU whose clock falls until its power is within the limit.

    At relative clock f in (0, 1] the GPU draws P = P_idle + (P_free - P_idle) f^a while it
    computes, where a is 1.3 to 3.2, P_idle 7 to 32 % of the highest limit, and P_free 32 to 135 %.
    Power stays up to 15 % below the limit. A batch takes T = w + max((1 - w) / f, o): the part w,
    up to 90 %, waits for the host, at 0 to 100 % of the computing power above idle; in half of the
    loads, memory hides a clock that is up to 30 % lower (o). Last, each limit's power and time are
    off the curve by up to 1 %, as clocks come in steps.
    """
    rng = random.Random(f"load {seed} of {limits_w}")
    idle_w = rng.uniform(0.07, 0.32) * min(limits_w[0], 2 * limits_w[-1])
    free_w = max(rng.uniform(0.32, 1.35) * limits_w[0], 1.2 * idle_w)
    exponent, waiting = rng.uniform(1.3, 3.2), rng.uniform(0, 0.9)
    drawn, resting = rng.uniform(0.85, 1.0), rng.uniform(0, 1)
    hidden = rng.choice([1.0, rng.uniform(1.0, 1.3)])
    deviation = rng.uniform(0, 0.01)

    truth = {}
    for limit in limits_w:
        power_w = min(drawn * limit, free_w)
        clock = max(0.05, (power_w - idle_w) / (free_w - idle_w)) ** (1 / exponent)
        computing = (1 - waiting) * max(1 / clock, hidden)
        waiting_w = idle_w + resting * (power_w - idle_w)
        energy_j = waiting * waiting_w + computing * power_w
        slower, more = (1 + rng.uniform(-deviation, deviation) for _ in range(2))
        time_s = slower * (waiting + computing)
        truth[limit] = PowerPoint(limit, slower * more * energy_j, time_s)
    return Load(f"made up {seed}", truth)


def disturb(load: Load) -> Load:
    """Disturb the first window.

    Either it takes 2 to 5 times as long at 30 to 70 % of the power, as while a data loader starts,
    or its power reads 2 to 5 times too low.
    """
    rng = random.Random(load.name)
    factor = rng.uniform(2, 5)
    return replace(load, disturbed=rng.choice([(factor, rng.uniform(0.3, 0.7)), (1.0, 1 / factor)]))


Cell = tuple[Sequence[Load], str, float, float, float]
"""Loads, search, windows, noise and eta."""


def search_all(cell: Cell) -> list[Outcome]:
    """Search on each load of a cell."""
    loads, name, windows, noise, eta = cell
    return [search_load(one, name, windows, noise=noise, eta=eta) for one in loads]


def table(
    title: str,
    sets: dict[str, tuple[Sequence[Load], Sequence[float]]],
    runs: Callable[[Iterable[Cell]], Iterable[list[Outcome]]],
    etas: Sequence[float] = ETAS,
) -> Table:
    """Tabulate the excess of both searches, for sets of loads and the noises to measure with."""
    shown = Table(title=title)
    for heading in ("loads", "eta", "noise", "search"):
        shown.add_column(heading)
    for length in LENGTHS:
        shown.add_column(f"{length} windows: mean", justify="right")
        for heading in ("worst", "measured"):
            shown.add_column(heading, justify="right")
    searches: tuple[str, ...] = ("sweep", "information")
    rows = [
        (name, eta, noise, search)
        for name, (_, noises) in sets.items()
        for eta, noise, search in product(etas, noises, searches)
    ]
    cells = [
        (sets[name][0], search, length, noise, eta)
        for name, eta, noise, search in rows
        for length in LENGTHS
    ]
    progress = Console(stderr=True)
    outcomes_of_cells = track(
        runs(cells),
        "searching",
        total=len(cells),
        console=progress,
        transient=True,
        disable=not progress.is_terminal,
    )
    found = iter(outcomes_of_cells)
    for name, eta, noise, search in rows:
        figures = []
        for _ in LENGTHS:
            outcomes = next(found)
            excesses = [outcome.excess for outcome in outcomes]
            windows = fmean(len(outcome.measured_w) for outcome in outcomes)
            figures += [
                f"{100 * fmean(excesses):.3f} %",
                f"{100 * max(excesses):.2f} %",
                f"{windows:.1f}",
            ]
        shown.add_row(name, f"{eta:g}", f"{100 * noise:g} %", search, *figures)
        if search == searches[-1]:
            shown.add_section()
    return shown


def main() -> None:
    parser = ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="With all loads it takes some minutes. A terminal shows the progress.",
    )
    parser.add_argument("--traces", type=Path, default=os.environ.get("ZEUS_TRACES"))
    parser.add_argument(
        "--loads",
        type=int,
        help="at most as many recorded loads, and made-up ones of each range; default: all and 100",
    )
    parser.add_argument("--chosen-on", action="store_true", help="the loads of even seeds instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    sets: dict[str, tuple[Sequence[Load], Sequence[float]]] = {}
    if arguments.traces:
        sets["recorded"] = recorded_loads(Path(arguments.traces))[: arguments.loads], (0.0,)
    for low, high in RANGES:
        count = 100 if arguments.loads is None else arguments.loads
        loads = list(made_up_loads((low, high), count, reported=not arguments.chosen_on))
        sets[f"{low} to {high} W"] = loads, NOISES
        if (low, high) == RANGES[0]:
            sets[f"{low} to {high} W, disturbed"] = [disturb(load) for load in loads], (0.02,)
    console = Console(width=160)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        part = "chosen on" if arguments.chosen_on else "only reported"
        console.print(
            table(
                f"Excess over the best limit; made-up loads {part}",
                sets,
                partial(pool.map, search_all),
            )
        )


if __name__ == "__main__":
    main()
