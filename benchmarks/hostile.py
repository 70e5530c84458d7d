"""Hostile kinds of jobs: those on which a policy with a prior loses to one without.

Each function makes one kind's workload from a seed. Unless it says otherwise,

- the batch sizes are powers of two from 8 on, and the default is any of them;
- where the cost rises with the batch size, runs take more epochs; where it falls, epochs are
  cheaper; the fewest epochs are about `EPOCHS`;
- what runs take is log-normal with a deviation of 2 to 20 % (log-uniform), and rounded;
- a run fails after five times the most epochs expected of a batch size.

`RESULTS.md` says which choices were made with the results on these kinds at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from excess import Case
from numpy.typing import NDArray
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.workload import Epoch, Setting, Workload

EPOCHS = 20
RECURRENCES = 100
FEW = 24
"""Recurrences of `two_sizes`."""
GIVEN_UP = 50
"""Recurrences after which a batch size becomes cheap."""
WINDOW = 10
_POWER_W = 200.0
_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 100) for i in range(100)])

Floats = NDArray[np.float64]


def gentle_flat(rng: np.random.Generator, seed: int) -> Workload:
    """Runs of 4 or 5 epochs; the best three batch sizes are within 2 %, the dearest 8 % above."""
    costs = [1.08, 1.05, 1.03, 1.015, 1.0, 1.01]
    return _of_few_epochs(rng, costs if rng.integers(2) else costs[::-1])


def gentle_edge(rng: np.random.Generator, seed: int) -> Workload:
    """Runs of 4 or 5 epochs; the smallest or the largest batch size is best by 7 to 9 %."""
    others = rng.uniform(1.07, 1.09) + rng.uniform(0, 0.02, 5)
    costs = [*others.tolist(), 1.0]
    return _of_few_epochs(rng, costs if rng.integers(2) else costs[::-1])


def _of_few_epochs(rng: np.random.Generator, costs: Sequence[float]) -> Workload:
    """The share of runs that take five epochs rises with the batch size."""
    draws = [
        np.where(np.arange(100) < 100 * share, 5.0, 4.0)
        for share in np.linspace(rng.uniform(0, 0.3), rng.uniform(0.5, 1), len(costs))
    ]
    prices = [cost / each.mean() for cost, each in zip(costs, draws, strict=True)]
    return _workload(prices, draws, int(rng.integers(len(costs))))


def two_sizes(rng: np.random.Generator, seed: int) -> Workload:
    """Two batch sizes, of which the one that is not the default never converges; 24 recurrences."""
    made = _job(rng, [0.0, 0.0], default=int(rng.integers(2)))
    (other,) = made.settings.keys() - {made.default_batch_size}
    return _never(made, [other])


def far_edge(rng: np.random.Generator, seed: int) -> Workload:
    """The best is at an edge four octaves from the default, each octave 1.5 times cheaper."""
    costs = math.log(1.5) * np.arange(6)
    return _job(rng, costs, default=4) if seed % 2 else _job(rng, costs[::-1], default=1)


def cliff_in_the_middle(rng: np.random.Generator, seed: int) -> Workload:
    """Nearly flat octaves, then one that costs 2.3 times as much, then three flat octaves."""
    costs = np.array([0.04, 0.02, 0.0, 0.02] + 4 * [math.log(2.3) + 0.02])
    return _job(rng, costs if seed % 2 else costs[::-1])


def farther_valley(rng: np.random.Generator, seed: int) -> Workload:
    """The default is in a valley that is 15 to 30 % dearer than one behind a ridge of 30 %."""
    dearer = math.log(rng.uniform(1.15, 1.3))
    ridge = dearer + math.log(1.3)
    costs = np.array([dearer + 0.1, dearer, dearer + 0.1, ridge, ridge, 0.1, 0.0, 0.1])
    return _job(rng, costs, default=1) if seed % 2 else _job(rng, costs[::-1], default=6)


def default_never(rng: np.random.Generator, seed: int) -> Workload:
    """The default and all that are smaller never converge; the best is one or two above it."""
    default, beyond = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    made = _job(rng, 0.2 * np.abs(np.arange(7) - default - beyond), default=default)
    return _never(made, list(made.settings)[: default + 1])


def lucky_run(rng: np.random.Generator, seed: int) -> Workload:
    """A batch size that is 20 % dearer than the best costs half as much in its first run."""
    best, steps = int(rng.integers(2, 5)), int(rng.choice([-2, 2]))
    made = _job(rng, 0.09 * np.abs(np.arange(7) - best), default=best - steps // 2)
    return _with_first_run(made, list(made.settings)[best + steps], 0.5, seed)


def costly_first_run(rng: np.random.Generator, seed: int) -> Workload:
    """The first run of the default takes five times as many epochs; the default is best or next."""
    best = int(rng.integers(1, 6))
    made = _job(rng, 0.2 * np.abs(np.arange(7) - best), default=best - int(rng.integers(2)))
    return _with_first_run(made, made.default_batch_size, 4.9, seed)


def becomes_cheap(rng: np.random.Generator, seed: int) -> Workload:
    """A batch size three from the best costs 80 % more, later 30 % less than the best."""
    best, steps = int(rng.integers(3, 5)), int(rng.choice([-3, 3]))
    made = _job(rng, 0.2 * np.abs(np.arange(8) - best), default=best)
    size = list(made.settings)[best + steps]
    ((limit, epoch),) = made.settings[size].epochs.items()
    cheap = replace(made.settings[size], epochs={limit: epoch.times(0.7 / math.exp(0.6))})
    later = replace(made, settings={**made.settings, size: cheap})
    return replace(made, phases=(made, later), phase_length=GIVEN_UP)


KINDS: dict[str, Callable[[np.random.Generator, int], Workload]] = {
    each.__name__: each
    for each in (
        gentle_flat,
        gentle_edge,
        two_sizes,
        far_edge,
        cliff_in_the_middle,
        farther_valley,
        default_never,
        lucky_run,
        costly_first_run,
        becomes_cheap,
    )
}


def cases(policies: Sequence[str], seeds: Sequence[int]) -> list[Case]:
    """All replays; a kind is a row, and `becomes_cheap` has another one with a window."""
    made = []
    for number, (kind, make) in enumerate(KINDS.items()):
        windows = (0, WINDOW) if kind == "becomes_cheap" else (0,)
        for window in windows:
            row = f"{kind}, window_size={window}" if window else kind
            for policy in policies:
                for seed in seeds:
                    workload = make(np.random.default_rng([seed, number, 8]), seed)
                    spec = workload.spec(policy=policy, seed=seed, window_size=window)
                    count = FEW if kind == "two_sizes" else RECURRENCES
                    made.append(Case(row, Experiment(workload, spec, count)))
    return made


def _job(
    rng: np.random.Generator,
    log_costs: Sequence[float] | NDArray[np.floating],
    default: int | None = None,
) -> Workload:
    """A job of these costs; see the module's docstring."""
    rises = np.diff(log_costs, prepend=log_costs[0])
    epochs = EPOCHS * np.exp(np.maximum(rises, 0).cumsum())
    prices = np.exp(np.minimum(rises, 0).cumsum())
    deviation = math.exp(rng.uniform(math.log(0.02), math.log(0.2)))
    factors = np.exp(deviation * _QUANTILES)
    draws = [np.round(each * rng.permutation(factors / factors.mean())) for each in epochs]
    at = int(rng.integers(len(prices))) if default is None else default
    return _workload(prices.tolist(), draws, at)


def _workload(prices: Sequence[float], draws: Sequence[Floats], default: int) -> Workload:
    sizes = [8 * 2**number for number in range(len(prices))]
    settings = {
        size: Setting(tuple(each.tolist()), {_POWER_W: Epoch(price, _POWER_W * price)})
        for size, price, each in zip(sizes, prices, draws, strict=True)
    }
    most = math.ceil(5 * max(each.mean() for each in draws))
    return Workload("hostile", "synthetic", settings, sizes[default], most, _POWER_W)


def _never(workload: Workload, sizes: Sequence[int]) -> Workload:
    """Let these batch sizes never converge."""
    never = {size: replace(workload.settings[size], target_epochs=(math.inf,)) for size in sizes}
    return replace(workload, settings={**workload.settings, **never})


def _with_first_run(workload: Workload, size: int, factor: float, seed: int) -> Workload:
    """Let the first run of a batch size take so many times the epochs, with this job's seed.

    A later run draws it with a probability of 1 %.
    """
    setting = workload.settings[size]
    draws = list(setting.target_epochs)
    # As `TrialRunner.draw` does.
    first = np.random.default_rng([workload.spec(seed=seed).random_seed(), size, 1]).random()
    draws[int(first * len(draws))] = float(round(factor * np.mean(draws)))
    changed = replace(setting, target_epochs=tuple(draws))
    return replace(workload, settings={**workload.settings, size: changed})
