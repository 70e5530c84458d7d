"""When a run stops: a pure decision over what it reports."""

from __future__ import annotations

from zeus_service.messages import Decision, Report
from zeus_service.spec import JobSpec


def decide(
    spec: JobSpec, report: Report, *, previous_cost: float, cost_bound: float | None
) -> Decision:
    """Decide whether a run goes on after a report.

    A run that reaches its target has converged, also past the bound: its cost is known. Otherwise
    it stops when the epochs are used up, or when the next report is expected to cross the bound,
    at the price of the last one.

    Args:
        spec: The job.
        report: Cumulative figures of the run.
        previous_cost: Cost in joules at the report before; 0 for the first.
        cost_bound: Early-stop bound in joules; None: no bound.

    Source: Zeus (You, Chung, Chowdhury, NSDI 2023), section 4, for the bound.
    """
    cost = spec.cost(report.energy_j, report.time_s)
    if spec.reached(report.metric):
        return Decision(
            decision="stop",
            outcome="converged",
            cost=cost,
            cost_bound=cost_bound,
            reason=f"the target of {spec.target_metric:.6g} is reached",
        )
    if report.epoch >= spec.max_epochs:
        return Decision(
            decision="stop",
            outcome="not_converged",
            cost=cost,
            cost_bound=cost_bound,
            reason=f"the epochs are used up, short of the target of {spec.target_metric:.6g}",
        )
    expected = cost + max(cost - previous_cost, 0.0)
    if cost_bound is not None and expected > cost_bound:
        return Decision(
            decision="stop",
            outcome="early_stopped",
            cost=cost,
            cost_bound=cost_bound,
            reason=f"the next report is expected at a cost of {expected:.4g} J, past the bound of "
            f"{cost_bound:.4g} J ({spec.beta_knob:g} times the lowest cost known)",
        )
    return Decision(
        decision="continue",
        outcome=None,
        cost=cost,
        cost_bound=cost_bound,
        reason=f"short of the target of {spec.target_metric:.6g}",
    )
