"""Whether a run stops after a report. The policy's `cost_bound` computes the early-stop bound."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.spec import Amount, Count, JobSpec, Metric, PositiveAmount, PositiveCount
from zeus_service.units import energy

IDLE_LOAD = 0.5
"""A host with a lower load per core slows no run down."""


class Report(BaseModel):
    """What a run measured from the start of training up to one validation end.

    Args:
        sequence: Counts the run's reports from 1.
        epoch: Epochs trained.
        time_s: Seconds since the start.
        energy_j: Joules since the start, over all devices.
        metric: The monitored metric of this validation.
        power_limit_w: The GPUs' power limit at the time; null without GPUs.
        default_power_limit_w: Their default power limit; null without GPUs.
        host_load: Load average of the host per core, as the mean over the trial's reports so far.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    sequence: PositiveCount
    epoch: Count
    time_s: Amount
    energy_j: Amount
    metric: Metric
    power_limit_w: PositiveAmount | None = None
    default_power_limit_w: PositiveAmount | None = None
    host_load: Amount | None = None


class Decision(BaseModel):
    """The answer to a report: whether the run continues, and why. Costs are in joules."""

    model_config = ConfigDict(frozen=True)

    decision: Literal["continue", "stop"]
    outcome: Outcome | None
    cost: float
    cost_bound: float | None
    reason: str


def decide(
    spec: JobSpec,
    report: Report,
    *,
    max_power_w: float,
    previous_cost: float,
    cost_bound: float | None,
    is_baseline: bool = False,
) -> Decision:
    """Decide whether a run continues after a report. A baseline always does.

    A run that reaches its target has converged, even past the bound: its cost is known. Otherwise
    it stops after the last epoch, or when the next report would cross the bound if it cost as much
    as this one. If the job's `early_stop` is `spent`, the cost so far is compared with the bound,
    and past it a run has failed even if it reaches its target.

    Args:
        spec: The job.
        report: Cumulative time and energy of the run.
        max_power_w: MaxPower of the run's hardware, in watts.
        previous_cost: Cost in joules at the previous report; 0 at the first.
        cost_bound: Early-stop bound in joules, or None for no bound.
        is_baseline: Whether the run trains to completion, so that the target is learned from it.

    Source: Zeus (You, Chung, Chowdhury, NSDI 2023), section 4, for the bound.
    """
    cost = spec.cost(report.energy_j, report.time_s, max_power_w)
    if is_baseline:
        return Decision(
            decision="continue",
            outcome=None,
            cost=cost,
            cost_bound=None,
            reason="a baseline runs to completion",
        )
    spent = spec.early_stop == "spent"
    judged = cost if spent else cost + max(cost - previous_cost, 0.0)
    past_bound = cost_bound is not None and judged > cost_bound
    outcome: Outcome | None = None
    reason = f"short of the target of {spec.target_metric:.6g}"
    if spec.reached(report.metric) and not (spent and past_bound):
        outcome, reason = "converged", f"the target of {spec.target_metric:.6g} is reached"
    elif past_bound and (spent or report.epoch < spec.max_epochs):
        outcome = "early_stopped"
        costs = f"has cost {energy(judged)} so far"
        if not spent:
            costs = f"would cost {energy(judged)} by the next report"
        reason = f"it {costs}, over its stop limit of {energy(cost_bound)}"
    elif report.epoch >= spec.max_epochs:
        outcome = "not_converged"
        trained = "1 epoch" if report.epoch == 1 else f"{report.epoch} epochs"
        reason = f"the target of {spec.target_metric:.6g} was not reached in {trained}"
    return Decision(
        decision="stop" if outcome else "continue",
        outcome=outcome,
        cost=cost,
        cost_bound=cost_bound,
        reason=reason,
    )


def busy_host(load: float | None, usual: float | None) -> str:
    """What to add to a reason if the host was over twice as busy as in the runs before.

    Args:
        load: The host's load per core over the run; None if it is unknown.
        usual: Over the runs before; None if it is unknown.
    """
    if load is None or usual is None or load <= max(2 * usual, IDLE_LOAD):
        return ""
    return f"; host load {load:.1f}, usual {usual:.1f}"
