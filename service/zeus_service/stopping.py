"""When a run stops: a pure decision over what it reports."""

from __future__ import annotations

from zeus_service.history import Outcome
from zeus_service.messages import Decision, Report
from zeus_service.spec import JobSpec


def decide(
    spec: JobSpec, report: Report, *, previous_cost: float, cost_bound: float | None
) -> Decision:
    """Decide whether a run goes on after a report.

    A run that reaches its target has converged, also past the bound: its cost is known. Otherwise
    it stops when the epochs are used up, or when the next report is expected to cross the bound,
    at the price of the last one. A job whose `early_stop` is `spent` goes by the cost so far, and
    past the bound a run has failed even if it reaches its target.

    Args:
        spec: The job.
        report: Cumulative figures of the run.
        previous_cost: Cost in joules at the report before; 0 for the first.
        cost_bound: Early-stop bound in joules; None: no bound.

    Source: Zeus (You, Chung, Chowdhury, NSDI 2023), section 4, for the bound.
    """
    cost = spec.cost(report.energy_j, report.time_s)
    spent = spec.early_stop == "spent"
    judged = cost if spent else cost + max(cost - previous_cost, 0.0)
    past_bound = cost_bound is not None and judged > cost_bound
    outcome: Outcome | None = None
    reason = f"short of the target of {spec.target_metric:.6g}"
    if spec.reached(report.metric) and not (spent and past_bound):
        outcome, reason = "converged", f"the target of {spec.target_metric:.6g} is reached"
    elif past_bound and (spent or report.epoch < spec.max_epochs):
        outcome = "early_stopped"
        reason = (
            f"{'the cost so far' if spent else 'the cost expected at the next report'} is "
            f"{judged:.4g} J, past the bound of {cost_bound:.4g} J, which follows from what the "
            f"best batch size costs and from beta_knob={spec.beta_knob:g}"
        )
    elif report.epoch >= spec.max_epochs:
        outcome, reason = "not_converged", f"the epochs are used up, {reason}"
    return Decision(
        decision="stop" if outcome else "continue",
        outcome=outcome,
        cost=cost,
        cost_bound=cost_bound,
        reason=reason,
    )
