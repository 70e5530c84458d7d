"""The target of a job that was given none: what the next run of the default probably reaches.

It is learned from the best values of the job's baselines, which train with the default batch size
to completion. The target is a one-sided prediction bound: if the best values are independent and
normal, the best value of the next such run reaches it with a probability of 90 %.

Source: Hahn and Meeker, "Statistical Intervals", 1991, section 4.8: for one future observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

from zeus_service.bandit.spec import MAX_METRIC, JobSpec

_T_90 = (
    *(3.0777, 1.8856, 1.6377, 1.5332, 1.4759, 1.4398, 1.4149, 1.3968, 1.3830, 1.3722),
    *(1.3634, 1.3562, 1.3502, 1.3450, 1.3406, 1.3368, 1.3334, 1.3304, 1.3277),
)
"""Student's 90 % quantiles for 1 to 19 degrees of freedom.

Source: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, with a digit more."""


def learn(spec: JobSpec, best_values: Sequence[float]) -> float:
    """Return the target that follows from the best values of 2 to 20 baselines.

    The mean of equal values is exactly that value, so each of these runs has reached it.
    """
    count = len(best_values)
    width = _T_90[count - 2] * sqrt(1 + 1 / count) * stdev(best_values)
    bound = mean(best_values) + (-width if spec.higher_is_better else width)
    return max(-MAX_METRIC, min(bound, MAX_METRIC))
