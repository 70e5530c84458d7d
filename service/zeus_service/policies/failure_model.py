"""The belief about whether a run converges, for each batch size.

Failures and successes of a batch size give a Beta posterior with a weak prior. The tries of other
batch sizes count half for each octave of distance, and together as at most two tries. A failure
beyond all batch sizes that have ever converged counts in full for those still further out.
"""

from functools import lru_cache

import numpy as np

from zeus_service.policies.cost_model import Floats

PRIOR_FAILURES, PRIOR_SUCCESSES = 0.1, 0.9
NEIGHBOUR_TRIES = 2.0
"""All other batch sizes together count as at most this many tries."""


def failure_probabilities(
    batch_sizes: list[int], converged: list[float], failed: list[float], ever_converged: list[bool]
) -> Floats:
    """Compute the probability that a try fails for another reason than its cost.

    It is the mean of each batch size's posterior. All arguments have a value for each batch size,
    ascending: the numbers of tries that converged and that failed, older ones in fractions.
    """
    of_failures = of_successes = _neighbour_weights(tuple(batch_sizes))
    known = np.flatnonzero(ever_converged)
    if known.size:
        index = np.arange(len(batch_sizes))
        beyond = (index > known[-1])[None, :] & (index[:, None] > index)
        beyond |= (index < known[0])[None, :] & (index[:, None] < index)
        of_failures = np.where(beyond, 1.0, of_failures)
    failures_near = of_failures @ np.array(failed)
    successes_near = of_successes @ np.array(converged)
    scale = NEIGHBOUR_TRIES / np.maximum(failures_near + successes_near, NEIGHBOUR_TRIES)
    failures = PRIOR_FAILURES + np.array(failed) + scale * failures_near
    successes = PRIOR_SUCCESSES + np.array(converged) + scale * successes_near
    probabilities: Floats = failures / (failures + successes)
    return probabilities


@lru_cache(maxsize=256)
def _neighbour_weights(batch_sizes: tuple[int, ...]) -> Floats:
    """(n, n), the weight of a try of the second batch size for the first; 0 for the same one."""
    octave = np.log2(batch_sizes)
    weights: Floats = 0.5 ** np.abs(octave[:, None] - octave)
    np.fill_diagonal(weights, 0.0)
    return weights
