"""Draws the figures of the documents: `make figures`.

All are simulated on synthetic workloads: no recorded runs are needed, and the same version draws
the same figures.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from zeus_service.simulation.experiment import Experiment, Tally, by_key, ratio, run_all
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

from benchmarks.power import made_up_load
from docs import model_figures
from zeus_lightning.power.information import Information
from zeus_lightning.power.search import power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost

Floats = npt.NDArray[np.float64]
FOLDER = Path(__file__).parent / "figures"
COLOURS = {"zeus": "#4c78a8", "information_directed": "#e45756"}
POLICIES = tuple(COLOURS)
EXAMPLE = synthetic_workload(20)
"""The workload of the first figures."""
EXAMPLE_SEEDS, SEEDS, KNOB_SEEDS = range(20), range(4), range(2)
"""Seeds with which the example, many workloads, and each value of a knob are replayed."""
MANY = [synthetic_workload(seed) for seed in range(2000, 2012)]
DRIFTING = [drifting_workload(seed) for seed in range(2000, 2006)]

mpl.rcParams |= {
    "svg.hashsalt": "zeus-lightning",  # so that the same figure is the same file
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def main() -> None:
    """Write all figures."""
    FOLDER.mkdir(exist_ok=True)
    of_model = model_figures.epochs, model_figures.epoch_cost
    for draw in (valley, *of_model, regret, drift, knobs, power):
        figure = draw()
        figure.savefig(FOLDER / f"{draw.__name__}.svg", metadata={"Date": None})
        print(f"{FOLDER.name}/{draw.__name__}.svg")


def valley() -> Figure:
    """Plot the cost of a run over the batch size."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axes = figure.subplots()
    oracle = EXAMPLE.expected_cost(EXAMPLE.oracle(0.5), 0.5)
    for size, setting in EXAMPLE.settings.items():
        epoch = setting.price(0.5, EXAMPLE.max_power_w).epoch_cost
        runs = [epochs * epoch / oracle for epochs in setting.target_epochs if np.isfinite(epochs)]
        axes.plot([size] * len(runs), runs, "o", color="#4c78a8", alpha=0.3, markersize=4)
        if not runs:
            axes.annotate("never", (size, 1.0), ha="center", rotation=90, color="#777777")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(EXAMPLE.settings), [str(size) for size in EXAMPLE.settings])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axvline(EXAMPLE.default_batch_size, color="#777777", linestyle=":", label="default")
    axes.axhline(2.0, color="#e45756", linestyle="--", label="2 x the best: a run is stopped")
    axes.set(xlabel="batch size", ylabel="cost of a run, over the best")
    axes.set_xlim(min(EXAMPLE.settings) / 1.5, max(EXAMPLE.settings) * 1.5)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def regret() -> Figure:
    """Plot the cumulative regret on the example and on many workloads."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, title, workloads, seeds in zip(
        panels,
        ("the workload above", f"{len(MANY)} other ones"),
        ([EXAMPLE], MANY),
        (EXAMPLE_SEEDS, SEEDS),
        strict=True,
    ):
        for policy, values in by_policy(workloads, seeds, recurrences=100).items():
            band(axes, policy, np.cumsum(values - 1, axis=1))
        axes.set(title=title, xlabel="recurrence", ylabel="regret (runs of the best)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def drift() -> Figure:
    """Plot the cost of each recurrence while the best batch size moves."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    for axes, window_size in zip(figure.subplots(1, 2, sharey=True), (0, 10), strict=True):
        for policy, values in by_policy(DRIFTING, SEEDS, window_size=window_size).items():
            # The median over replays, and then the mean over twenty recurrences.
            middle = np.convolve(np.median(values, axis=0), np.ones(20) / 20, mode="valid")
            axes.plot(np.arange(10, 10 + len(middle)), middle, color=COLOURS[policy], label=policy)
        axes.set(title=f"window_size={window_size}", xlabel="recurrence")
        axes.set_ylim(0.95, 2.0)
    figure.axes[0].set_ylabel("cost, over the best's")
    figure.axes[0].legend(loc="upper left")
    return figure


def knobs() -> Figure:
    """Plot the excess, energy and time over the values of a job's knobs."""
    figure = Figure(figsize=(7, 5.4), layout="constrained")
    (beta, rounds), (window, eta) = figure.subplots(2, 2)
    values = (1.2, 1.5, 2.0, 4.0, 8.0)
    sweep(beta, MANY, "beta_knob", values)
    beta.set_xscale("log")
    beta.set_xticks(values, [f"{value:g}" for value in values])
    beta.minorticks_off()
    sweep(rounds, MANY, "num_pruning_rounds", (0, 1, 2, 3, 4), ["zeus"])
    sweep(window, DRIFTING, "window_size", (5, 10, 20, 40), ["zeus"])
    window.set_title("window_size, under drift")
    values = (0.0, 0.25, 0.5, 0.75, 1.0)
    for policy in POLICIES:
        spent = [replayed(MANY, KNOB_SEEDS, [policy], eta_knob=value) for value in values]
        for name, style in (("energy_j", "-"), ("time_s", "--")):
            ratios = [
                ratio((getattr(each, name), getattr(each, f"default_{name}")) for each in group)
                for group in spent
            ]
            heights = [each.value for each in ratios]
            eta.plot(values, heights, style, marker="o", markersize=3, color=COLOURS[policy])
    eta.set(title="eta_knob: energy (-), time (--)", ylabel="over the default's")
    handles, labels = beta.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def sweep(
    axes: Axes,
    workloads: Sequence[Workload],
    knob: str,
    values: Sequence[float],
    policies: Sequence[str] = POLICIES,
) -> None:
    """Plot the mean excess of policies over the values of a knob."""
    for policy in policies:
        excess = [
            mean_excess(replayed(workloads, KNOB_SEEDS, [policy], **{knob: value}))
            for value in values
        ]
        axes.plot(values, excess, marker="o", markersize=3, color=COLOURS[policy], label=policy)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    axes.set(title=knob, ylabel="excess over the best")
    axes.set_ylim(bottom=0)


def power() -> Figure:
    """Plot the expected costs of the power limits after some windows."""
    limits_w = tuple(sorted(power_limits(200, 700, 25)))
    truth = made_up_load(limits_w[::-1], 12).truth
    cost = partial(ZeusCost().cost, inputs=SelectorInputs(max_power_w=float(limits_w[-1])))
    best = min(map(cost, truth.values()))
    rng = random.Random(0)
    search = Information(limits_w, cost)
    windows: list[PowerPoint] = []
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    panels = dict(zip((2, 4, 6, 10), np.ravel(figure.subplots(2, 2, sharex=True)), strict=True))
    while limit_w := search.propose(windows, 500):
        if (axes := panels.get(len(windows))) is not None:
            log_cost, spread = search.expected(windows)
            low, high = (np.exp(log_cost + sign * 2 * spread) / best for sign in (-1, 1))
            axes.fill_between(limits_w, low, high, color="#e45756", alpha=0.2, linewidth=0)
            mean = np.exp(log_cost) / best
            axes.plot(limits_w, mean, color="#e45756", label="expected, two deviations")
            axes.plot(limits_w, [cost(truth[w]) / best for w in limits_w], "k:", label="true")
            seen = [window.limit_w for window in windows]
            axes.plot(seen, [cost(window) / best for window in windows], "o", label="measured")
            axes.axvline(limit_w, color="#777777", linestyle="--")
            axes.set_title(f"after {len(windows)} windows; next: {limit_w} W", fontsize=8)
            axes.set_ylim(0.95, 1.3)
        point = truth[limit_w]
        slower, more = rng.gauss(1, 0.01), rng.gauss(1, 0.01)
        windows.append(
            PowerPoint(point.limit_w, slower * more * point.energy_j, slower * point.time_s)
        )
    figure.axes[0].legend(loc="upper right", fontsize=7)
    for axes in figure.axes[2:]:
        axes.set_xlabel("power limit (W)")
    for axes in figure.axes[::2]:
        axes.set_ylabel("cost, over the best's")
    return figure


def mean_excess(group: Sequence[Tally]) -> float:
    """The mean, over replays, of the cost over that of the best batch size, minus one."""
    return statistics.mean(sum(each.costs) / sum(each.oracle_costs) - 1 for each in group)


def replayed(
    workloads: Sequence[Workload],
    seeds: Sequence[int],
    policies: Sequence[str] = POLICIES,
    recurrences: int | None = None,
    **job_knobs: Any,
) -> list[Tally]:
    """Replay every workload with every policy and seed."""
    experiments = [
        Experiment(
            workload,
            workload.spec(policy=policy, seed=seed, **job_knobs),
            recurrences or workload.horizon,
        )
        for policy in policies
        for workload in workloads
        for seed in seeds
    ]
    return list(run_all(experiments, jobs=os.cpu_count() or 1))


def by_policy(
    workloads: Sequence[Workload],
    seeds: Sequence[int],
    recurrences: int | None = None,
    **job_knobs: Any,
) -> dict[str, Floats]:
    """For every policy, (replays, recurrences), costs over that of the best batch size."""
    costs: dict[str, list[Floats]] = {}
    tallies = replayed(workloads, seeds, recurrences=recurrences, **job_knobs)
    for key, group in by_key(tallies).items():
        relative = [np.divide(each.costs, each.oracle_costs) for each in group]
        costs.setdefault(key.policy, []).append(np.stack(relative))
    return {policy: np.concatenate(each) for policy, each in costs.items()}


def band(axes: Axes, policy: str, values: Floats) -> None:
    """Plot the mean, and the middle 80 % of the replays."""
    recurrences = np.arange(1, values.shape[1] + 1)
    low, high = np.percentile(values, [10, 90], axis=0)
    axes.fill_between(recurrences, low, high, color=COLOURS[policy], alpha=0.2, linewidth=0)
    axes.plot(recurrences, values.mean(axis=0), color=COLOURS[policy], label=policy)


if __name__ == "__main__":
    main()
