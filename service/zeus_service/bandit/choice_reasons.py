"""Why a run gets its batch size, or why none is left, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from zeus_service.bandit.fold import Counts, passed_over
from zeus_service.bandit.policy import ArmEstimate, Choice, State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.errors import ExhaustedJob
from zeus_service.units import energy, range_with_unit, runs

REMEDY = "Use another job_id with an easier target or other batch sizes."
_STATUSES = {
    "not_converged": "missed the target",
    "out_of_memory": "ran out of memory",
    "early_stopped": "cost too much",
    "alive": "failed",  # in an error that says that none is left to try
}


def reason(
    spec: JobSpec, state: State, hardware: Hardware, choice: Choice, inconclusive: Counts
) -> str:
    """Why the job's policy, in this state, has made this choice for this hardware.

    `inconclusive` counts the ends without a result.
    """
    policy, passed = policy_of(spec), passed_over(inconclusive)
    arms = {arm.batch_size: arm for arm in policy.describe(spec, state, hardware)}
    best = arms.get(policy.best_batch_size(spec, state, hardware) or 0)
    chosen = arms[choice.batch_size]
    text = {
        "explore": _worth(chosen, best),
        "exploit": _lead(chosen, (arm for arm in arms.values() if arm.batch_size not in passed)),
        "concurrent": "another trial is exploring, so this run uses the best known batch size, or "
        "the default",
        "fallback": "all batch sizes have failed, but a trial with this one is still running",
        "control": "a control trial: the default batch size, without early stopping",
        "baseline": f"runs to completion; {spec.baseline_runs} baselines set the target",
    }[choice.why]
    is_chosen = choice.why in ("explore", "exploit", "concurrent")
    skipped = [str(size) for size in passed if arms[size].status == "alive"]
    if not skipped or not is_chosen or choice.batch_size in passed:
        return text
    return f"{text}; {', '.join(skipped)} skipped: no result"


def _worth(chosen: ArmEstimate, best: ArmEstimate | None) -> str:
    """What the run of a batch size that is explored may find."""
    measured = f"measured in {runs(chosen.pulls)}" if chosen.pulls else "not measured yet"
    if best is None:
        return f"{measured}; no batch size has reached the target so far"
    if chosen == best:
        return f"{measured}; the best so far, to be measured again"
    if not best.mean or chosen.interval is None:
        return f"{measured}, may beat batch size {best.batch_size}"
    gain = 1 - chosen.interval[0] / best.mean
    if gain < 0.01:
        return f"{measured}; another run will show how the cost depends on the batch size"
    low, high = (_few_digits(cost / best.mean) for cost in chosen.interval)
    return f"{measured}, may cost {low} to {high} times as much as batch size {best.batch_size}"


def _few_digits(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _lead(chosen: ArmEstimate, arms: Iterable[ArmEstimate]) -> str:
    """What the best batch size is expected to cost, and by how much it leads."""
    if not chosen.mean:
        return "it looks cheapest after the runs so far"
    text = f"expected cost to the target {energy(chosen.mean)}"
    if chosen.interval:
        text += f" ({range_with_unit(*chosen.interval)})"
    text += f" from {runs(chosen.pulls)}" if chosen.pulls else ", judging by other batch sizes"
    rivals = [
        (arm.mean, arm.batch_size)
        for arm in arms
        if arm.mean and arm.status == "alive" and arm != chosen
    ]
    if not rivals:
        return text
    cost, rival = min(rivals)
    more = cost / chosen.mean - 1
    if more <= -0.005:
        return f"{text}; {rival} looks {-100 * more:.0f} % cheaper, but that is uncertain"
    costs = f"{100 * more:.0f} % more" if more >= 0.005 else "about the same"
    return f"{text}; next best: {rival}, {costs}"


def status_in_words(status: str) -> str:
    """Why a batch size is not chosen: `missed the target`."""
    return _STATUSES.get(status, status.replace("_", " "))


def baselines(spec: JobSpec, completed: int) -> str:
    """How many baselines have completed of a job whose target is not known."""
    return f"{completed} of {spec.baseline_runs} baselines completed"


def count_failures(arms: Iterable[ArmEstimate]) -> str:
    """How batch sizes failed: `2 missed the target, 1 was not tried`."""
    arms = list(arms)
    failed = Counter(status_in_words(arm.status) for arm in arms if arm.pulls)
    counts = [f"{count} {failure}" for failure, count in failed.most_common()]
    if untried := len(arms) - failed.total():
        counts.append(f"{untried} {'was' if untried == 1 else 'were'} not tried")
    return ", ".join(counts)


def exhausted(
    spec: JobSpec, state: State, hardware: Hardware, multiple_of: int = 1
) -> ExhaustedJob:
    """The error for a start after all batch sizes have failed that `multiple_of` divides."""
    arms = policy_of(spec).describe(spec, state, hardware)
    usable = [arm for arm in arms if arm.batch_size % multiple_of == 0]
    counts = count_failures(usable)
    limit = "" if len(usable) == len(arms) else f" divisible by {multiple_of}"
    return ExhaustedJob(
        f"job {spec.job_id!r} has no batch size{limit} left to try: {counts}. {REMEDY}"
    )
