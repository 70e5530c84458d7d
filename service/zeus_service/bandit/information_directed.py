"""Information-directed sampling over the costs of a run: see `docs/information-directed.md`.

**Models.** `cost_model.py` has the posterior of what a run costs that converges: the epochs that it
takes, on any hardware, times what an epoch costs on its own. `outlook.py` has the posterior of
whether a run converges. A run that was stopped early was either slow or would never have converged:
it counts as a failure with the probability of the latter.

**Choice.** Of the batch sizes that have converged, the best so far has the lowest expected cost.
The policy seeks the cheapest batch size if it is cheaper than that by more than `NEGLIGIBLE`;
otherwise it seeks the best so far, since a smaller gain would not pay for the search. It chooses
the batch size `i` with the smallest `regret[i]^2 / information[i]`. The regret is the expected loss
from trying `i` now instead of the one that is sought, retries and early stops included. The
information is what the run's epochs, and the cost of its epochs, are expected to tell about which
one is sought. If a quantity has the posterior variance `total`, of which `v` is explained by which
one is sought, and is seen with the noise `sigma` in `k` trials, that is

    -log(1 - v / (total + sigma^2 / k))

twice the mutual information if all are normal; trials of `i` that are running count. All are
estimated from draws of the posterior. An estimate below `LEAST_INFORMATION` is raised to it, so
that the regret decides. Exploration ends once no run is expected to change what is sought. Until a
run has converged, all trials get the default, or the nearest to it of the batch sizes that failed
least. Source: Russo and Van Roy, "Learning to optimize via information-directed sampling",
Operations Research 66(1), 2018, where two actions are mixed; and "Satisficing in time-sensitive
bandit learning", Mathematics of Operations Research 47(4), 2022, for seeking less than the optimum.

**Early stop.** The threshold is `beta_knob` times the estimated cost of the best batch size on the
run's hardware, which one lucky run does not lower; but at least two standard deviations above the
cost of its runs. When runs of batch sizes that have converged before are stopped one after the
other, the threshold doubles each time after the first: a job that has become slower for good
converges again. There is none on hardware on which no epoch was measured.

**Drift.** When the epochs have changed, or the cost of an epoch on one hardware, what was known of
them is forgotten, see `cost_model.py`, and exploration starts again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit.cost_model import (
    add_run,
    add_stopped_run,
    epoch_cost_posterior,
    epochs_posterior,
    forget_runs,
    has_drifted,
    is_known,
    new_curve,
)
from zeus_service.bandit.curve_model import Floats
from zeus_service.bandit.outlook import (
    COST_OF_FAILURE,
    Outlook,
    epoch_costs,
    failure_probabilities,
    find_alive,
    hardware_state,
    infer_costs,
    information_gain,
    log_cost_bound,
    new_hardware,
    why_given_up,
)
from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    State,
    Why,
    counted,
    reproducible,
)
from zeus_service.bandit.spec import Hardware, JobSpec

DRAWS = 256
LEAST_INFORMATION = 0.005
"""The lower limit of a run's information. An estimate this small is mostly chance, and so is the
ratio of two of them."""
NEGLIGIBLE = 0.04
"""A batch size is not sought if its log cost is lower by less than this."""
TRAINED = ("converged", "early_stopped", "not_converged", "diverged")
"""Results of runs that did not run out of memory."""
LEAST_COST = 1e-300
"""In joules. A smaller cost means that the meter does not count."""


class InformationDirectedPolicy:
    """Chooses the smallest regret per information; see the module's docstring."""

    name = "information_directed"

    def initial_state(self, spec: JobSpec) -> State:
        """Zeros: no trial has been observed."""
        count = len(spec.batch_sizes)
        return {  # lists have an entry per batch size
            "epochs": new_curve(count),  # until the target is reached
            "converged": [0.0] * count,  # number of tries that converged
            "failed": [0.0] * count,  # number of tries that failed, in fractions
            "ever_converged": [False] * count,
            # number of failures but early stops and out of memory, since the last that converged
            "hard_failures": [0] * count,
            "failure": [None] * count,  # result of the latest failure but out of memory
            "hardware": {},  # {its key: what is known of it alone, see `new_hardware`}
            "running": {},  # {batch size: number of trials running}
        }

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """The batch size with the least regret for the information that it yields."""
        is_alive = find_alive(spec, state, hardware)
        usable = set(usable)
        is_usable = [batch_size in usable for batch_size in spec.batch_sizes]
        alive = np.flatnonzero(is_alive & is_usable)
        if not len(alive):
            raise NoBatchSizeLeft
        posterior = infer_costs(spec, state, hardware)
        if posterior is None:
            why: Why = "concurrent" if state["running"] else "explore"
            return Choice(_nearest_to_default(spec, state, hardware, alive), why)
        outlook = Outlook(spec, state, hardware, posterior, is_alive)
        best = outlook.best(alive)
        drawn = posterior.draw(DRAWS, rng)
        never = rng.random((DRAWS, 1)) < outlook.never
        failing = outlook.log_retries + math.log(COST_OF_FAILURE) * never
        sought, sought_cost = _find_sought(drawn.log_cost + failing, never, alive, best)
        cost_now = outlook.cost_now(drawn)
        regret_of_best = outlook.log_cost[best] - sought_cost.mean()
        regret = cost_now - cost_now[best] + regret_of_best
        epochs, epoch_cost = posterior.epochs, posterior.epoch_cost
        running = np.array([state["running"].get(str(b), 0) for b in spec.batch_sizes])
        information = information_gain(
            drawn.epochs + failing, sought, epochs.noise_variance, running
        )
        information += information_gain(
            drawn.epoch_cost, sought, epoch_cost.noise_variance, running
        )
        ratio = np.maximum(regret, 0) ** 2 / np.maximum(information, LEAST_INFORMATION)
        chosen = alive[np.argmin(ratio[alive])]
        best_of_all = outlook.best(np.flatnonzero(is_alive))
        return Choice(spec.batch_sizes[chosen], "exploit" if chosen == best_of_all else "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """Count a running trial."""
        return {**state, "running": counted(state["running"], choice.batch_size, 1)}

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Add the trial's epochs, their cost, or its failure to what is known."""
        batch_size, result = observation.choice.batch_size, observation.result
        before = {**state, "running": counted(state["running"], batch_size, -1)}
        if result is None:
            return before
        index = spec.batch_sizes.index(batch_size)
        after = copy.deepcopy(before)
        hardware = observation.hardware.key
        own = after["hardware"].setdefault(hardware, new_hardware(len(spec.batch_sizes)))
        own["pulls"][index] += 1
        if result in TRAINED:
            own["fits"] = max(own["fits"], batch_size)
        if result == "converged":
            _add_convergence(spec, before, after, own, index, observation)
        else:
            if result != "out_of_memory":
                after["failure"][index] = result
            _add_failure(spec, before, after, own, index, observation)
        _add_epoch_cost(spec, before, own, index, observation)
        return after

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """`beta_knob` times the estimated cost of the best batch size, with room for its noise."""
        posterior = infer_costs(spec, state, hardware)
        if posterior is None:
            return math.inf
        is_alive = find_alive(spec, state, hardware)
        log_bound = log_cost_bound(spec, state, hardware, posterior, is_alive)
        return math.exp(min(log_bound, 700.0)) if math.isfinite(log_bound) else math.inf

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """The lowest expected cost, retries included, among those that have converged."""
        posterior = infer_costs(spec, state, hardware)
        if posterior is None:  # even without a cost, some may have converged
            pairs = zip(spec.batch_sizes, state["ever_converged"], strict=True)
            return next((batch_size for batch_size, ever in pairs if ever), None)
        is_alive = find_alive(spec, state, hardware)
        if not is_alive.any():
            return None
        outlook = Outlook(spec, state, hardware, posterior, is_alive)
        return int(spec.batch_sizes[outlook.best(np.flatnonzero(is_alive))])

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """Mean and deviation of each batch size's cost, `exp(f + noise)`, which is log-normal.

        They are unknown on hardware on which no epoch was measured.
        """
        posterior = infer_costs(spec, state, hardware)
        given_up = why_given_up(spec, state, hardware)
        own = hardware_state(spec, state, hardware)
        arms = []
        for index, batch_size in enumerate(spec.batch_sizes):
            mean = spread = None
            if posterior is not None and posterior.is_measured:
                variance = min(float(posterior.variance[index]), 100.0)
                mean = math.exp(posterior.mean[index] + (variance + posterior.noise_variance) / 2)
                spread = mean * math.sqrt(math.expm1(variance))
            status = given_up[index] or "alive"
            arms.append(ArmEstimate(batch_size, own["pulls"][index], mean, spread, status))
        return arms


def _find_sought(
    log_costs: Floats, never: NDArray[np.bool_], alive: NDArray[np.intp], best: int
) -> tuple[NDArray[np.intp], Floats]:
    """Find the batch size that is sought in each draw.

    Args:
        log_costs: (DRAWS, n).
        never: (DRAWS, n), whether a batch size never converges.
        alive: Indices of the batch sizes that may be sought.
        best: The index of the best so far.

    Returns:
        Two arrays of shape (DRAWS,): its index among all n, and its log cost.
    """
    # What never converges is not sought, however cheap its runs would be.
    dearer = np.maximum(log_costs, log_costs[:, [best]] + math.log(COST_OF_FAILURE))
    log_costs = np.where(never & ~never[:, [best]], dearer, log_costs)[:, alive]
    at = np.argmin(log_costs - NEGLIGIBLE * (alive == best), axis=1)
    return alive[at], log_costs[np.arange(len(at)), at]


def _nearest_to_default(
    spec: JobSpec, state: State, hardware: Hardware, alive: NDArray[np.intp]
) -> int:
    """The batch size that failed least, then the nearest to the default, then the larger.

    Zeus's rounds also try larger ones first, unless the default ran out of memory: then all larger
    ones count as failed.
    """
    octave = np.log2(np.array(spec.batch_sizes) / spec.default_batch_size)
    out_of_memory = np.cumsum(hardware_state(spec, state, hardware)["out_of_memory"])
    failed = np.array(state["failed"]) + out_of_memory
    order = np.lexsort((-octave[alive], np.abs(octave[alive]), failed[alive]))
    return int(spec.batch_sizes[alive[order[0]]])


def _add_convergence(
    spec: JobSpec, before: State, state: State, own: State, index: int, observation: Observation
) -> None:
    own["stops_in_a_row"] = 0
    state["ever_converged"][index] = True
    state["hard_failures"][index] = own["out_of_memory_in_a_row"][index] = 0
    state["converged"][index] += 1
    if observation.cost < LEAST_COST:
        return
    log_epochs = reproducible(math.log(max(observation.epochs, 1)))
    posterior = epochs_posterior(spec, before["epochs"])
    if posterior and has_drifted(state["epochs"], posterior, index, log_epochs):
        _forget_epochs(state)
    add_run(state["epochs"], index, log_epochs)


def _add_epoch_cost(
    spec: JobSpec, before: State, own: State, index: int, observation: Observation
) -> None:
    """Add the cost of an epoch to what is known of the hardware."""
    epochs, cost = observation.epochs, observation.cost
    if cost < LEAST_COST or not (epochs or observation.result == "converged"):
        return
    log_cost = reproducible(math.log(cost / max(epochs, 1)))
    if is_known(own["epoch_cost"]):
        posterior = epoch_cost_posterior(spec, epoch_costs(before), observation.hardware.key)
        if posterior and has_drifted(own["epoch_cost"], posterior, index, log_cost):
            forget_runs(own["epoch_cost"])
    add_run(own["epoch_cost"], index, log_cost)


def _add_failure(
    spec: JobSpec, before: State, state: State, own: State, index: int, observation: Observation
) -> None:
    if observation.result == "out_of_memory":
        own["out_of_memory"][index] += 1
        own["out_of_memory_in_a_row"][index] += 1
        return
    posterior = epochs_posterior(spec, before["epochs"])
    if observation.result != "early_stopped" or posterior is None:
        state["failed"][index] += 1
        state["hard_failures"][index] += 1
        return
    if state["ever_converged"][index]:
        own["stops_in_a_row"] += 1
    # The run had not reached its target after these epochs.
    log_epochs = reproducible(math.log(observation.epochs + 0.5))
    never, rate = (
        float(each[index]) for each in failure_probabilities(spec, before, observation.hardware)
    )
    failing = never + (1 - never) * rate
    slow = (1 - failing) * max(posterior.exceeds(index, log_epochs), 1e-9)
    failure = reproducible(failing / (failing + slow))
    state["failed"][index] += failure
    add_stopped_run(state["epochs"], index, log_epochs, 1 - failure)


def _forget_epochs(state: State) -> None:
    """Forget the epochs; keep which batch sizes have never converged.

    Of those that have, also forget the failures: since the change, runs may have been just slow.
    """
    forget_runs(state["epochs"])
    pairs = zip(state["failed"], state["ever_converged"], strict=True)
    state["failed"] = [0.0 if ever else failed for failed, ever in pairs]
