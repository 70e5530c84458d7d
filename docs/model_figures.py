"""Draws what the default policy believes of a made-up job, for `docs/information-directed.md`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from zeus_service.bandit.cost_model import epoch_cost_posterior, epochs_posterior
from zeus_service.bandit.curve_model import Posterior
from zeus_service.bandit.outlook import epoch_costs
from zeus_service.simulation.replay import SimulatedJob
from zeus_service.simulation.simulated_run import SimulatedTrial, TrialRunner
from zeus_service.simulation.workload import Epoch, Setting, Workload

BATCH_SIZES = [2**power for power in range(4, 12)]
MAX_POWER_W = 300.0
RUNS = 8


def made_up(gpu: str, fixed_s: float, per_sample_s: float) -> Workload:
    """A training of 50,000 samples an epoch; its epochs rise from 12 with the batch size."""
    factors = np.exp(0.08 * np.random.default_rng(2).standard_normal((len(BATCH_SIZES), 200)))
    settings = {}
    for size, luck in zip(BATCH_SIZES, factors, strict=True):
        epoch_s = 50_000 / size * (fixed_s + per_sample_s * size)
        price = {MAX_POWER_W: Epoch(epoch_s, 0.7 * MAX_POWER_W * epoch_s)}
        settings[size] = Setting(tuple(np.round(12 * (1 + size / 700) * luck).tolist()), price)
    return Workload("made-up", gpu, settings, 64, 100, MAX_POWER_W)


OLD, NEW = made_up("a GPU", 0.04, 0.0006), made_up("another GPU", 0.03, 0.0002)
SPEC = OLD.spec(seed=1)


def epochs() -> Figure:
    """Plot the epochs to the target over the batch size, after the first runs."""
    job, trials = trained([OLD] * RUNS)
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axes = figure.subplots()
    plot(axes, epochs_posterior(SPEC, job.state["epochs"]))
    truth = [setting.expected_epochs(OLD.max_epochs) for setting in OLD.settings.values()]
    axes.plot(BATCH_SIZES, truth, "k:", label="true mean")
    points = [(each.batch_size, each.epochs) for each in trials if each.result == "converged"]
    axes.plot(*np.array(points).T, "o", color="#4c78a8", alpha=0.6, label="a run")
    axes.set_ylabel("epochs to the target")
    figure.legend(loc="outside upper center", ncols=4)
    return figure


def epoch_cost() -> Figure:
    """Plot the cost of an epoch on the first hardware, and on other hardware after one run."""
    job, trials = trained([*[OLD] * RUNS, NEW])
    figure = Figure(figsize=(7, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    groups = (OLD, trials[:RUNS], f"{RUNS} runs"), (NEW, trials[RUNS:], "1 run")
    for axes, (workload, group, runs) in zip(panels, groups, strict=True):
        curves = epoch_costs(job.state)
        plot(axes, epoch_cost_posterior(SPEC, curves, workload.hardware.key), unit=1e3)
        truth = [each.price(0.5, MAX_POWER_W).epoch_cost for each in workload.settings.values()]
        axes.plot(BATCH_SIZES, np.array(truth) / 1e3, "k:", label="true")
        points = [(each.batch_size, each.cost / each.epochs / 1e3) for each in group if each.epochs]
        axes.plot(*np.array(points).T, "o", color="#4c78a8", alpha=0.6, label="a run")
        axes.set_title(f"{workload.gpu}, {runs}")
    figure.axes[0].set_ylabel("cost of an epoch (kJ)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def trained(workloads: Sequence[Workload]) -> tuple[SimulatedJob, list[SimulatedTrial]]:
    """Run one trial of each workload after the other, all of the same job."""
    job, runner, trials = SimulatedJob(SPEC), TrialRunner(SPEC), []
    for number, workload in enumerate(workloads):
        started = job.start(workload.hardware)
        trial = runner.run(workload, started, number)
        job.end(started, trial.result, trial.cost, trial.epochs)
        trials.append(trial)
    return job, trials


def plot(axes: Axes, posterior: Posterior | None, unit: float = 1.0) -> None:
    """Plot the expected curve, with a band of two standard deviations."""
    assert posterior is not None  # there were runs
    mean, spread = posterior.mean, 2 * np.sqrt(posterior.variance)
    low, high = np.exp(mean - spread) / unit, np.exp(mean + spread) / unit
    axes.fill_between(BATCH_SIZES, low, high, color="#e45756", alpha=0.2, linewidth=0)
    label = "believed, two deviations"
    axes.plot(BATCH_SIZES, np.exp(mean) / unit, color="#e45756", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCH_SIZES, [str(size) for size in BATCH_SIZES])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("batch size")
