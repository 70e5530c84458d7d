"""Whether runs of a batch size converge: the posterior, and which batch sizes are given up.

A batch size either never converges, or its runs fail now and then. How often is about the same for
all that have ever converged, so that one failure of a good batch size says little: each one's
posterior starts from the rate of all of them.

A batch size that has not converged yet either never will, or had as much bad luck as it has failed.
Before its own tries, the former is as likely as the tries of the others make it, which count half
for each octave of distance, and together as at most two tries. A failure beyond all batch sizes
that have ever converged counts in full for those still further out. Between two that have
converged, almost every batch size does: `PRIOR_NEVER_BETWEEN`.

One that has converged may never do so again: the data have grown, or the memory is smaller. How
likely that is follows from its failures in a row in the same way.
"""

from functools import lru_cache
from itertools import accumulate

import numpy as np

from zeus_service.bandit.curve_model import Floats
from zeus_service.bandit.policy import State
from zeus_service.bandit.spec import JobSpec

PRIOR_FAILURES, PRIOR_SUCCESSES = 0.1, 0.9
NEIGHBOUR_TRIES = 2.0
"""All other batch sizes together count as at most this many tries."""
POOLED_TRIES = 40.0
"""The rate of all batch sizes that have converged counts as this many tries of each."""
PRIOR_NEVER_BETWEEN = 0.003
"""Probability that a batch size between two that have converged never does."""
PRIOR_NEVER_AGAIN = 1e-5
"""Probability that a batch size that has converged never does so again, before its failures."""
LEAST_RATE_IN_A_ROW = 0.1
"""In a row, runs fail at least so often by bad luck, which strikes several at once."""
FAILURES_TO_GIVE_UP = 2
OUT_OF_MEMORY_TO_GIVE_UP = 2
"""Of a batch size that is larger than any that has trained, and of smaller such ones."""


def failure_probabilities(
    batch_sizes: list[int],
    converged: list[float],
    failed: list[float],
    ever_converged: list[bool],
    failed_in_a_row: list[int],
) -> tuple[Floats, Floats]:
    """Compute how likely a batch size fails for another reason than its cost.

    All arguments have a value for each batch size, ascending: the numbers of tries that converged
    and that failed, some in fractions; whether any has converged; and of those that have, how many
    tries have failed since.

    Returns:
        (n,), the probability that it never converges, or never again; and (n,), that of a run to
        fail if it ever does.
    """
    ever, tries = np.array(ever_converged), np.add(converged, failed)
    of_ever = PRIOR_FAILURES + np.where(ever, failed, 0).sum()
    of_tries = PRIOR_FAILURES + PRIOR_SUCCESSES + np.where(ever, tries, 0).sum()
    pooled = of_ever / of_tries
    rate = (POOLED_TRIES * pooled + failed) / (POOLED_TRIES + tries)

    of_failures = of_successes = _neighbour_weights(tuple(batch_sizes))
    known = np.flatnonzero(ever)
    if known.size:
        index = np.arange(len(batch_sizes))
        beyond = (index > known[-1])[None, :] & (index[:, None] > index)
        beyond |= (index < known[0])[None, :] & (index[:, None] < index)
        of_failures = np.where(beyond, 1.0, of_failures)
    failures_near = of_failures @ np.where(ever, 0, failed)
    successes_near = of_successes @ np.array(converged)
    scale = NEIGHBOUR_TRIES / np.maximum(failures_near + successes_near, NEIGHBOUR_TRIES)
    failures = PRIOR_FAILURES + scale * failures_near
    before = failures / (failures + PRIOR_SUCCESSES + scale * successes_near)
    bad_luck = pooled ** np.array(failed)
    between = np.maximum.accumulate(ever) & np.maximum.accumulate(ever[::-1])[::-1]
    before = np.where(between, np.minimum(before, PRIOR_NEVER_BETWEEN), before)
    before = np.where(ever, PRIOR_NEVER_AGAIN, before)
    in_a_row = np.array(failed_in_a_row)
    otherwise = (of_ever - in_a_row) / np.maximum(of_tries - in_a_row, 1)
    bad_luck_in_a_row = np.maximum(otherwise, LEAST_RATE_IN_A_ROW) ** in_a_row
    bad_luck = np.where(ever, bad_luck_in_a_row, bad_luck)
    never: Floats = before / (before + (1 - before) * bad_luck)
    return never, np.where(ever, rate, pooled)


def why_given_up(spec: JobSpec, state: State) -> list[str]:
    """For each batch size, the result for which it was given up; empty if it was not.

    One that has ever converged, on any hardware, is given up only for this hardware's memory: later
    failures may be bad luck.
    """
    return [
        "out_of_memory"
        if exceeds_memory
        else ""
        if ever_converged
        else str(failure)
        if hard_failures >= FAILURES_TO_GIVE_UP
        else ""
        for ever_converged, exceeds_memory, hard_failures, failure in zip(
            state["ever_converged"],
            _exceeds_memory(spec, state),
            state["hard_failures"],
            state["failure"],
            strict=True,
        )
    ]


def _exceeds_memory(spec: JobSpec, state: State) -> list[bool]:
    """Whether a batch size is too large for the memory: none so large has trained.

    Once may be bad luck: something else may have taken the memory.
    """
    tries = zip(spec.batch_sizes, state["out_of_memory"], strict=True)
    beyond = accumulate(failures if size > state["fits"] else 0 for size, failures in tries)
    return [failures >= OUT_OF_MEMORY_TO_GIVE_UP for failures in beyond]


@lru_cache(maxsize=256)
def _neighbour_weights(batch_sizes: tuple[int, ...]) -> Floats:
    """(n, n), the weight of a try of the second batch size for the first; 0 for the same one."""
    octave = np.log2(batch_sizes)
    weights: Floats = 0.5 ** np.abs(octave[:, None] - octave)
    np.fill_diagonal(weights, 0.0)
    return weights
