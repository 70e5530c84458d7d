"""The figures of a job, drawn from the database."""

from __future__ import annotations

from collections.abc import Callable

from zeus_service import messages, optimizer
from zeus_service import savings_report as savings
from zeus_service.db import power_profiles, series
from zeus_service.pages import figures, savings_figures
from zeus_service.pages.plotting import CURVE_POINTS, Figure

FIGURES: dict[str, tuple[str, str]] = {
    "valley": (
        "Cost over batch size",
        "The belief with its 95 % band, and each run by how it ended.",
    ),
    "costs": ("Cost of each run", "In order, coloured by batch size."),
    "regret": (
        "Cumulative regret",
        "What the runs, failed ones too, cost beyond the expected cost of the best batch size.",
    ),
    "saved": (
        "Energy saved",
        "Against the default batch size at the GPU's default power limit; less while it explores.",
    ),
    "power": (
        "Power limits",
        "Energy and time of one training batch over the GPU's power limit.",
    ),
}
"""Title and explanation of each figure, in the order in which they are shown."""


def _valley(job: messages.Job, trials: series.BatchSizeTrials) -> Figure:
    return figures.valley(job, trials, _empty(job) if not trials.total else "")


def _costs(job: messages.Job, trials: series.Thinned) -> Figure:
    return figures.costs(job.spec, trials, _empty(job) if not trials.total else "")


def _empty(job: messages.Job) -> str:
    """What a figure says of a job none of whose runs has ended, or is left."""
    left = sum(optimizer.get_job(job.job_id).outcomes.values())
    return figures.PRUNED if left < job.trials else figures.NOT_ENDED


_DRAW: dict[str, Callable[[messages.Job], Figure]] = {
    "valley": lambda job: _valley(job, series.by_batch_size(job.job_id)),
    "costs": lambda job: _costs(job, series.costs(job.job_id)),
    "regret": lambda job: figures.regret(job, _savings(job)),
    "saved": lambda job: savings_figures.over_runs(_savings(job)),
    "power": lambda job: figures.power(job.spec, power_profiles.all_of(job.job_id, None)),
}


def _savings(job: messages.Job) -> messages.JobSavings:
    return savings.of_job(job.job_id, savings.Rates(), points=CURVE_POINTS)


def draw(job_id: str, name: str) -> Figure:
    """Draw a figure of `FIGURES`."""
    return _DRAW[name](optimizer.get_job(job_id, count=False))
