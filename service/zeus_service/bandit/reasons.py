"""Why a run gets its batch size, or why none is left, in words."""

from __future__ import annotations

from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.inconclusive import IN_A_ROW, passed_over
from zeus_service.bandit.policy import ArmEstimate, Choice, State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec
from zeus_service.errors import ExhaustedJob


def reason(spec: JobSpec, state: State, hardware: Hardware, choice: Choice) -> str:
    """Why the job's policy, in this state, has made this choice for this hardware."""
    stage = policy_of(spec).stage(spec, state, hardware)
    text = {
        "explore": f"to learn what it costs (stage: {stage})",
        "exploit": "it looks cheapest after the runs so far",
        "concurrent": "another trial is exploring, so this run uses the best batch size known, or "
        "the default",
        "fallback": "all batch sizes have failed, but a trial with this one is still running",
        "control": "a control trial: the default batch size, without early stopping",
        "baseline": "the default batch size, to the run's own end; the target is learned when "
        f"{spec.baseline_runs} such runs have completed",
    }[choice.why]
    passed = passed_over(state)
    if not passed:
        return text
    ends = f"the latest {IN_A_ROW} or more trials ended without a result with each of " + ", ".join(
        f"{batch_size} ({outcome})" for batch_size, outcome in passed.items()
    )
    return f"{text}; {ends}"


def baselines(spec: JobSpec, completed: int) -> str:
    """How many baselines have completed: the stage of a job whose target is not known."""
    return f"{completed} of {spec.baseline_runs} baselines completed"


def exhausted(spec: JobSpec, state: State, hardware: Hardware, usable: list[int]) -> ExhaustedJob:
    """The error for a start after all usable batch sizes have failed."""
    arms = policy_of(spec).describe(spec, state, hardware)
    failures = _failures([arm for arm in arms if arm.batch_size in usable])
    is_limited = usable != spec.batch_sizes
    limit = f" among {usable}, which this run's devices can divide" if is_limited else ""
    return ExhaustedJob(
        f"job {spec.job_id!r} has no batch size left to try{limit}: {failures}. Register it under "
        "another job_id, with a target that can be reached, more epochs, or other batch sizes."
    )


def _failures(arms: list[ArmEstimate]) -> str:
    tried = [f"{arm.batch_size} ({arm.status})" for arm in arms if arm.pulls]
    beyond = [str(arm.batch_size) for arm in arms if not arm.pulls]
    text = f"{', '.join(tried)} failed" if tried else "none was tried"
    if any(arm.status == "idle" for arm in arms):
        return f"{text}, and the policy tries no other"
    return f"{text}; {', '.join(beyond)} lie beyond these and were not tried" if beyond else text
