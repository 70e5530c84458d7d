"""The valley: what runs cost over the batch size."""

from __future__ import annotations

from collections.abc import Sequence

from zeus_service.api.messages import Job, OnHardware
from zeus_service.api.text import hardware_names, words
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.db import queries
from zeus_service.db.tables import Trial
from zeus_service.pages import plot
from zeus_service.pages.plot import BLUE, GREEN, GREY, ORANGE, RED, Figure
from zeus_service.units import energy, range_with_unit, shared_unit

OUTCOMES = {
    "converged": (GREEN, "circle"),
    "early_stopped": (ORANGE, "x"),
    "not_converged": (RED, "diamond"),
    "completed": (BLUE, "circle-open"),
    "diverged": ("#d6409f", "star"),
    "out_of_memory": ("#8e4ec6", "square"),
    "interrupted": (GREY, "circle-open"),
    "errored": (GREY, "x"),
    "lost": (GREY, "square-open"),
}
"""Colour and symbol of each outcome that is drawn."""
BEYOND = 3.0
"""The valley shows costs up to so many times the early-stopping threshold."""
WIDEST = 1000.0
"""Ratio of the highest and the lowest cost that the valley shows, at most."""


def valley(job: Job, trials: Sequence[Trial]) -> Figure:
    """Plot each batch size's expected cost, the runs, and the early-stopping threshold.

    They are of the latest hardware: costs on different hardware are not compared.
    """
    if not job.hardware:
        return plot.empty(runs_drawn(job, trials))
    on = job.hardware[-1]
    hardware = Hardware.of(vars(on))
    runs_there = [trial for trial in trials if trial.hardware == hardware]
    window = _window(on, runs_there)
    traces = _estimates(on, window)
    for outcome, (colour, symbol) in OUTCOMES.items():
        if found := [trial for trial in runs_there if trial.outcome == outcome]:
            x, symbols = [trial.batch_size for trial in found], [symbol] * (len(found) + 1)
            traces.append(plot.dots(words(outcome), x, found, colour, symbols, window))
    lines = []
    if on.cost_bound:
        lines.append(plot.line(on.cost_bound, RED, "stop limit"))
    layout = {
        "xaxis": _batch_size_axis(job),
        "yaxis": plot.log_energy_axis("cost of a run", window),
        "shapes": lines,
        "showlegend": True,
    }
    note = runs_drawn(job, trials)
    if len(job.hardware) > 1:
        note = f"Shows only the latest hardware, {hardware_names(job.hardware)[-1]}. {note}".strip()
    finding = _finding(job.spec, on)
    return {"data": traces, "layout": layout, "note": note, "title": finding}


def _batch_size_axis(job: Job) -> Figure:
    """An axis of batch sizes, at most about a dozen with ticks, and the default and the next one.

    Those two are named below the axis, where no curve crosses the words, each on a line of its own.
    """
    sizes, default = job.spec.batch_sizes, job.spec.default_batch_size
    following = job.next_trial.batch_size if job.next_trial else None
    names = {default: "<br>default", following: "<br><br>next"}
    if following == default:
        names = {default: "<br>default<br>next"}
    step = len(sizes) // 12 + 1
    named = [index for index, size in enumerate(sizes) if size in names]
    free = [
        at for at in range(0, len(sizes), step) if all(abs(at - each) >= step for each in named)
    ]
    ticks = [sizes[index] for index in sorted({*free, *named})]
    return plot.axis(
        "batch size",
        type="category",
        categoryarray=sizes,
        range=[-0.4, len(sizes) - 0.6],
        tickvals=ticks,
        ticktext=[f"{size}{names.get(size, '')}" for size in ticks],
        tickangle=0,
    )


def _window(on: OnHardware, trials: Sequence[Trial]) -> plot.Window:
    """The costs that a row of the valley shows; points beyond become arrows at its edges."""
    ends = [end for arm in on.arms for end in (arm.mean, *(arm.interval or ()))]
    costs = [cost for cost in (*ends, *(trial.cost for trial in trials), on.cost_bound) if cost]
    costs = costs or [1.0]
    highest = min(max(costs), BEYOND * on.cost_bound if on.cost_bound else max(costs))
    return max(min(costs), highest / WIDEST) / 1.4, highest * 1.2


def _estimates(on: OnHardware, window: plot.Window) -> list[Figure]:
    """The expected costs; the best batch size has a ring."""
    known = [(arm, arm.mean, arm.interval or (arm.mean, arm.mean)) for arm in on.arms if arm.mean]
    if not known:
        return []
    sizes, means = [arm.batch_size for arm, _, _ in known], [mean for _, mean, _ in known]
    units = shared_unit(means)
    curve = plot.curve("expected", sizes, means, BLUE) | {
        "marker": {"size": 5},
        "hovertext": [
            f"{energy(mean, units)}, {range_with_unit(*interval, units)}"
            for _, mean, interval in known
        ],
        "hovertemplate": "%{x}: %{hovertext}<extra></extra>",
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - mean for _, mean, (_, high) in known],
            "arrayminus": [mean - low for _, mean, (low, _) in known],
            "thickness": 1,
        },
    }
    beyond = [arm for arm, mean, _ in known if mean > window[1]]
    arrows = {"symbol": "triangle-up", "size": 9, "color": BLUE}
    best = [arm for arm, _, _ in known if arm.batch_size == on.best_batch_size]
    ring = {"symbol": "circle-open", "size": 17, "color": GREEN, "line": {"width": 2.5}}
    return [
        curve,
        *(
            {"name": name, "mode": "markers", "marker": marker, "hoverinfo": "skip"}
            | {"cliponaxis": False, "x": [arm.batch_size for arm in arms]}
            | {"y": [min(arm.mean or 0.0, window[1]) for arm in arms]}
            for name, marker, arms in (("beyond", arrows, beyond), ("best", ring, best))
            if arms
        ),
    ]


def _finding(spec: JobSpec, on: OnHardware) -> str:
    """What the valley shows, in a sentence; empty if the best batch size is not known."""
    best, default = on.arm(on.best_batch_size), on.arm(spec.default_batch_size)
    if best is None or not best.mean:
        return ""
    if best == default:
        return f"The default, {best.batch_size}, costs the least of the sizes tried"
    if default and default.mean and default.pulls and best.mean < default.mean:
        share, units = (
            100 * (1 - best.mean / default.mean),
            shared_unit(arm.mean for arm in on.arms),
        )
        costs = f"{energy(best.mean, units)} instead of {energy(default.mean, units)}"
        less = f"{best.batch_size} costs {share:.0f} % less than the default {default.batch_size}"
        return f"{less}: {costs}"
    return f"{best.batch_size} costs the least of the sizes tried"


def runs_drawn(job: Job, trials: Sequence[Trial]) -> str:
    """Say whether a figure has all of a job's runs; empty if it has."""
    if not trials:
        return "No run has ended yet."
    # Runs that are in flight or were withdrawn are among the job's trials, but not drawn.
    latest = len(trials) == queries.POINTS
    return plot.what_is_drawn(len(trials), job.trials, "runs") if latest else ""
