"""The six figures of a job, as Plotly's JSON.

That of costs over the batch size is in `valley`. The others are pure functions of what the database
returned; `draw_job` reads it. The page's script adds what all figures have in common; the style
sheet colours text and grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from sqlalchemy import Row

from zeus_service import optimizer
from zeus_service.api import savings_report
from zeus_service.api.messages import Job, PowerProfile
from zeus_service.api.savings_report import JobSavings
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.db import jobs, power_profiles, queries
from zeus_service.db.tables import Era, Report, Trial
from zeus_service.pages import plot
from zeus_service.pages.plot import BLUE, GREEN, GREY, ORANGE, RED, Figure
from zeus_service.pages.valley import OUTCOMES, runs_drawn, valley
from zeus_service.units import energy, range_with_unit

CURVES = (ORANGE, BLUE, GREEN, RED, "#8e4ec6", "#d6409f")
"""Colours of runs that are compared."""


def draw_job(job_id: str) -> dict[str, Figure]:
    """Read what the figures of a job's page show, and draw them."""
    job = Job.with_estimates(*optimizer.describe_job(job_id))
    ended, savings = queries.latest_trials(job_id), savings_report.job_savings(job_id)
    trials = [trial for trial, _ in ended]
    return {
        "valley": valley(job, trials),
        "costs": costs(job, trials),
        "regret": regret(job, savings, ended),
        "saved": saved(savings, ended),
        "power": power(job.spec, power_profiles.list_profiles(job_id)),
    }


def draw_compared(job_id: str, trials: Sequence[Trial]) -> Figure:
    """Read the latest reports of some trials, and draw them."""
    spec = jobs.specification(optimizer.get_job(job_id))
    reports = [queries.latest_reports(job_id, each.trial_number) for each in trials[: len(CURVES)]]
    left_out: list[Sequence[Report]] = [[] for _ in trials[len(CURVES) :]]
    return compare(spec, list(zip(trials, [*reports, *left_out], strict=True)))


def costs(job: Job, trials: Sequence[Trial]) -> Figure:
    """Plot the cost of each run in order, coloured by batch size."""
    colours, traces = plot.batch_size_colours(job.spec), []
    for batch_size in sorted({trial.batch_size for trial in trials}):
        found = [trial for trial in trials if trial.batch_size == batch_size]
        symbols = ["circle", *(OUTCOMES[str(trial.outcome)][1] for trial in found)]
        x, colour = [trial.trial_number for trial in found], colours.get(batch_size, GREY)
        traces.append(plot.dots(str(batch_size), x, found, colour, symbols))
    numbers, legend = [trial.trial_number for trial in trials], {"title": {"text": "batch size"}}
    note = runs_drawn(job, trials)
    return plot.over_runs(numbers, "cost", traces, note, legend=legend, showlegend=True)


def regret(job: Job, savings: JobSavings, ended: Sequence[Row[Trial, Era | None]]) -> Figure:
    """Plot what the runs cost beyond the best batch size's expected cost, summed over them.

    Each run is compared with the best batch size on its own hardware. The latest runs are drawn,
    and the curve ends with the sum over all.
    """
    best = {Hardware.of(vars(on)): on.arm(on.best_batch_size) for on in job.hardware}
    means = {hardware: arm.mean for hardware, arm in best.items() if arm and arm.mean is not None}
    drawn = [trial for trial, era in ended if era and trial.hardware in means]
    if not drawn:
        return plot.empty("The best batch size is not known yet.")
    numbers = [trial.trial_number for trial in drawn]
    parts = [trial.cost - (trial.outcome == "converged") * means[trial.hardware] for trial in drawn]
    there = [(each, means.get(Hardware.of(vars(each)))) for each in savings.hardware]
    total = sum(each.spent.cost - each.recurrences * mean for each, mean in there if mean)
    _, *sums = accumulate(parts, initial=total - sum(parts))
    data = [plot.curve("regret", numbers, sums, ORANGE) | {"fill": "tozeroy"}]
    return plot.over_runs(numbers, "regret", data)


def saved(savings: JobSavings, ended: Sequence[Row[Trial, Era | None]]) -> Figure:
    """Plot what a job has saved, summed over its runs.

    The latest runs are drawn, and the curve ends with the sum over all. Errors add up, since they
    have a common cause: what a run of the default is expected to take.
    """
    drawn = [
        (trial, era.expected_energy_j, era.expected_energy_error_j or 0.0)
        for trial, era in ended
        if era and era.expected_energy_j is not None
    ]
    if not drawn or savings.saved is None:
        return plot.empty("The energy of a run with the default batch size is not known yet.")
    in_all = savings.saved.energy_j
    parts, errors = [], []
    for trial, expected_j, error_j in drawn:
        counts = trial.outcome == "converged"
        parts.append(counts * expected_j - trial.energy_j)
        errors.append(counts * error_j)
    sums = accumulate(parts, initial=in_all.estimate - sum(parts))
    line = [round(sum_j, 3) + 0.0 for sum_j in sums]  # no -0.0
    bands = list(accumulate(errors, initial=max(0.0, round(in_all.error - sum(errors), 3))))
    low = [sum_j - error_j for sum_j, error_j in zip(line, bands, strict=True)]
    high = [sum_j + error_j for sum_j, error_j in zip(line, bands, strict=True)]
    numbers = [drawn[0][0].trial_number - 1, *(trial.trial_number for trial, *_ in drawn)]
    texts = [
        f"{energy(sum_j)}, {range_with_unit(low_j, high_j)}"
        for sum_j, low_j, high_j in zip(line, low, high, strict=True)
    ]
    band = {"x": [*numbers, *numbers[::-1]], "y": [*low, *high[::-1]], "mode": "none"}
    data = [
        band | {"fill": "toself", "fillcolor": f"{GREEN}2e", "hoverinfo": "skip"},
        plot.curve("saved", numbers, line, GREEN)
        | {"hovertext": texts, "hovertemplate": "run %{x}: %{hovertext}<extra></extra>"},
    ]
    note = "The band is the 95 % interval."
    if savings.estimated:
        note += " Energy is estimated."
    return plot.over_runs(numbers, "saved", data, note)


def power(spec: JobSpec, stored: Sequence[dict[str, Any]]) -> Figure:
    """Plot energy and time of a batch over the power limit, by batch size and GPUs."""
    profiles = [PowerProfile.model_validate(profile) for profile in stored]
    if not profiles:
        return plot.empty(
            "No power limits have been measured yet; ZeusPowerLimitCallback measures them."
        )
    colours = plot.batch_size_colours(spec)
    has_several = len({(each.device_model, each.num_devices) for each in profiles}) > 1
    data: list[Figure] = []
    for profile in profiles:
        points = sorted(profile.points, key=lambda point: point.limit_w)
        limits = [point.limit_w for point in points]
        gpus = f"{profile.num_devices} \N{MULTIPLICATION SIGN} {plot.plain(profile.device_model)}"
        name = f"{profile.batch_size} on {gpus}" if has_several else str(profile.batch_size)
        colour = colours.get(profile.batch_size, GREY)
        symbols = ["star" if limit == profile.chosen_w else "circle" for limit in limits]
        sizes = [12 if limit == profile.chosen_w else 5 for limit in limits]
        shared = {"legendgroup": name, "marker": {"size": sizes, "symbol": symbols}}
        data += [
            plot.curve(name, limits, [point.energy_j for point in points], colour) | shared,
            plot.curve(name, limits, [point.time_s for point in points], colour)
            | {**shared, "yaxis": "y2", "showlegend": False},
        ]
    layout = {
        "grid": {"rows": 2, "columns": 1, "pattern": "coupled"},
        "xaxis": plot.axis("power limit (W)"),
        "yaxis": plot.energy_axis("energy per batch", data[::2]),
        "yaxis2": plot.axis("time per batch (s)"),
        "legend": {"title": {"text": "batch size"}},
        "showlegend": True,
    }
    chosen = "; ".join(f"{each.batch_size} at {each.chosen_w} W" for each in profiles)
    note = f"Stars mark the chosen limits: {chosen}."
    return {"data": data, "layout": layout, "note": note}


def compare(spec: JobSpec, compared: Sequence[tuple[Trial, Sequence[Report]]]) -> Figure:
    """Plot metric, power and cost of trials over their epochs; of a single one, its stop limit."""
    data, every = [], []
    for (trial, reports), colour in zip(compared, CURVES, strict=False):
        name = f"run {trial.trial_number} ({trial.batch_size})"
        epochs = [report.epoch for report in reports]
        every += epochs
        data += [
            plot.curve(name, epochs, values, colour)
            | {"yaxis": axis, "legendgroup": name, "showlegend": axis == "y"}
            for axis, values in _measured(reports)
        ]
    if not every:
        return plot.empty("No reports yet.")
    note = plot.what_is_drawn(min(len(compared), len(CURVES)), len(compared), "runs")
    if len(compared) == 1:
        note = plot.what_is_drawn(len(every), compared[0][1][-1].sequence, "reports")
        limits = [report.cost_bound for report in compared[0][1]]
        data.append(plot.curve("stop limit", every, limits, RED) | {"yaxis": "y3"})
    return {"data": data, "layout": _over_epochs(spec, every, data), "note": note}


def _measured(reports: Sequence[Report]) -> list[tuple[str, list[float | None]]]:
    """The metric, the mean power since the report before, and the cost, by their axes."""
    first = reports[:1]
    start = [(each.time_s, each.energy_j) if each.sequence > 1 else (0.0, 0.0) for each in first]
    spent = [*start, *((report.time_s, report.energy_j) for report in reports)]
    powers = [
        (energy_j - before_j) / (time_s - before_s) if time_s > before_s else None
        for (before_s, before_j), (time_s, energy_j) in pairwise(spent)
    ]
    metrics: list[float | None] = [report.metric for report in reports]
    return [("y", metrics), ("y2", powers), ("y3", [report.cost for report in reports])]


def _over_epochs(spec: JobSpec, epochs: Sequence[int], data: Sequence[Figure]) -> Figure:
    """The layout of three rows over epochs, with the target."""
    costs = [trace for trace in data if trace["yaxis"] == "y3"]
    target, monitor = spec.target_metric, spec.monitor
    title = monitor if len(monitor) <= 18 else f"{monitor[:17]}\N{HORIZONTAL ELLIPSIS}"
    return {
        "grid": {"rows": 3, "columns": 1, "pattern": "coupled"},
        "xaxis": plot.number_axis("epoch", epochs),
        "yaxis": plot.axis(plot.plain(title)),
        "yaxis2": plot.axis("power (W)"),
        "yaxis3": plot.energy_axis("cost", costs),
        "shapes": [] if target is None else [plot.line(target, GREEN, "target")],
        "showlegend": True,
    }


def metric_curve(spec: JobSpec, reports: Sequence[Report]) -> dict[str, Any]:
    """The metric of a run in flight, as points of an SVG polyline in a box of 100 by 30.

    Returns:
        The `points`, and the height of the `target`, if there is one.
    """
    metrics = [report.metric for report in reports]
    shown = [*metrics, *([] if spec.target_metric is None else [spec.target_metric])]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0) or 1.0
    last = max((report.epoch for report in reports), default=0) or 1
    heights = [29 - 28 * (value - low) / span for value in shown]
    points = zip((100 * report.epoch / last for report in reports), heights, strict=False)
    return {
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        "target": None if spec.target_metric is None else f"{heights[-1]:.1f}",
    }
