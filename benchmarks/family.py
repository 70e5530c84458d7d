"""A wide family of synthetic workloads, by which policies are chosen and judged.

A workload is drawn from its kind and a seed. Unless its kind says otherwise, with `U` uniform and
`L` log-uniform:

- 4 to 12 batch sizes from 4 to 32 on: powers of two, or a factor of `U(1.2, 1.9)` apart and rounded
  to integers or to multiples of 8, or the multiples of the first one;
- the cost is a valley over the octaves `log2(b)`, with its bottom at `U(smallest, largest)` and a
  slope of `L(1 %, 60 %)` per octave on either side, kinked or (every other one) round, and each
  batch size is off it by a factor `exp(N(0, r))`, with `r` of `U(0, 3 %)`;
- the cost of a run is log-normal, with a coefficient of variation of `L(1 %, 50 %)`;
- the default is any batch size, and all converge unless they take more than `MAX_EPOCHS`;
- 500 recurrences if the seed is even, otherwise `L(20, 1000)`.

Each kind's function says what is different. Constants of policies are chosen on seeds of
`CHOSEN_ON`; `RESULTS.md` says which choice was made with the results on `REPORTED` at hand.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from zeus_service.simulation.replay import Submission
from zeus_service.simulation.workload import Epoch, Setting, Workload

CHOSEN_ON = range(1000)
REPORTED = range(1000, 2000)
MAX_EPOCHS = 6000
_BEST_EPOCHS = 1000
_POWER_W = 200.0
_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 100) for i in range(100)])
_STILL = 100
"""A job no longer changes in so many recurrences before its end."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A workload of the family, and the number of its recurrences, or those that overlap."""

    kind: str
    seed: int
    workload: Workload
    recurrences: int | Sequence[Submission]


@dataclass
class Draft:
    """What a workload is made of.

    Args:
        sizes: Batch sizes.
        bottom: Of the valley, in octaves.
        left: Logarithm of cost per octave on the left of the bottom, or on the right.
        second: Bottom of a second valley, and by how much it is dearer, as a logarithm.
        variation: Coefficient of variation of a run's cost.
        default: Index of the default batch size.
        fails: Whether a batch size never reaches the target.
        memory: Probability that a run with a batch size runs out of memory.
        failing: Share of runs that never reach the target.
        changes: By how much the log cost, and the bottom, differ at each of several phases.
        phase_length: Recurrences of a phase.
    """

    sizes: list[int]
    bottom: float
    left: float
    right: float
    is_round: bool
    roughness: Floats
    variation: float
    default: int
    horizon: int
    fails: NDArray[np.bool_] = field(init=False)
    memory: Floats = field(init=False)
    second: tuple[float, float] | None = None
    failing: float = 0.0
    heavy_tail: bool = False
    changes: Sequence[tuple[float, float]] = ()
    phase_length: int = 0

    def __post_init__(self) -> None:
        self.fails = np.zeros(len(self.sizes), dtype=bool)
        self.memory = np.zeros(len(self.sizes))

    @property
    def octaves(self) -> Floats:
        """Log2 of each batch size."""
        octaves: Floats = np.log2(self.sizes)
        return octaves

    def valley(self, moved: float) -> Floats:
        """Log cost of each batch size, less that of the bottom, which has moved by some octaves."""
        log_cost = self._valley(self.octaves - self.bottom - moved)
        if self.second:
            bottom, dearer = self.second
            other = self._valley(self.octaves - bottom - moved) + dearer
            log_cost = np.minimum(log_cost, other)
        return log_cost + self.roughness

    def _valley(self, beyond: Floats) -> Floats:
        left, right = self.left, self.right
        if not self.is_round:
            return np.maximum(-left * beyond, right * beyond)
        valley: Floats = np.logaddexp(
            math.log(right / (left + right)) - left * beyond,
            math.log(left / (left + right)) + right * beyond,
        )
        return valley


def case(kind: str, seed: int) -> Case:
    """Draw a workload of a kind."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), 6])
    low, high = {"few_sizes": (2, 4), "many_sizes": (20, 41)}.get(kind, (4, 13))
    draft = draft_of(rng, _sizes(rng, int(rng.integers(low, high))), long=seed % 2 == 0)
    KINDS[kind](draft, rng)
    workload = _workload(draft, rng, f"{kind}-{seed}")
    if kind != "overlapping":
        return Case(kind, seed, workload, draft.horizon)
    return Case(kind, seed, workload, busy_submissions(seed, 0, draft.horizon))


def busy_submissions(seed: int, number: int, count: int) -> tuple[Submission, ...]:
    """Draw the submissions of a job, of whose runs up to five overlap.

    Args:
        seed: With the next one, the seed.
        number: Of the job.
        count: How many there are.
    """
    rng = np.random.default_rng([seed, number, 4])
    mean_s, start_s = 3600.0, 0.0
    interval_s = mean_s * rng.uniform(0.2, 1.5)
    submissions = []
    for _ in range(count):
        ratio = float(rng.lognormal(-0.125, 0.5))  # of mean one
        submissions.append(Submission(start_s, start_s + ratio * mean_s, ratio))
        start_s += float(rng.exponential(interval_s))
    return tuple(submissions)


def draft_of(rng: np.random.Generator, sizes: list[int], *, long: bool = True) -> Draft:
    """Draw what does not depend on the kind."""
    octaves = np.log2(sizes)
    return Draft(
        sizes=sizes,
        bottom=float(rng.uniform(octaves[0], octaves[-1])),
        left=_slope(rng),
        right=_slope(rng),
        is_round=bool(rng.integers(2)),
        roughness=rng.normal(0, rng.uniform(0, 0.03), len(sizes)),
        variation=_log_uniform(rng, 0.01, 0.5),
        default=int(rng.integers(len(sizes))),
        horizon=500 if long else round(_log_uniform(rng, 20, 1000)),
    )


def _sizes(rng: np.random.Generator, count: int) -> list[int]:
    first = int(rng.choice([4, 8, 16, 32]))
    spacing = rng.choice(["double", "integers", "eights", "multiples"])
    if spacing == "multiples" or count > 15:
        return [first * (i + 1) for i in range(count)]
    if spacing == "double":
        return [first * 2**i for i in range(count)]
    factor, step = rng.uniform(1.2, 1.9), 8 if spacing == "eights" else 1
    sizes = [max(first, step)]
    while len(sizes) < count:
        sizes.append(max(sizes[-1] + step, round(sizes[-1] * factor / step) * step))
    return sizes


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _slope(rng: np.random.Generator, low: float = 0.01, high: float = 0.6) -> float:
    return math.log1p(_log_uniform(rng, low, high))


def _ordinary(draft: Draft, rng: np.random.Generator) -> None:
    """Nothing is different."""


def _gentle(draft: Draft, rng: np.random.Generator) -> None:
    """Slopes of 1 to 8 % on both sides."""
    draft.left, draft.right = _slope(rng, 0.01, 0.08), _slope(rng, 0.01, 0.08)


def _steep(draft: Draft, rng: np.random.Generator) -> None:
    """Slopes of 25 to 60 % on both sides."""
    draft.left, draft.right = _slope(rng, 0.25, 0.6), _slope(rng, 0.25, 0.6)


def _lopsided(draft: Draft, rng: np.random.Generator) -> None:
    """A slope of 1 to 8 %, and one of 25 to 60 %."""
    slopes = [_slope(rng, 0.01, 0.08), _slope(rng, 0.25, 0.6)]
    draft.left, draft.right = rng.permutation(slopes).tolist()


def _noisy(draft: Draft, rng: np.random.Generator) -> None:
    """A coefficient of variation of 25 to 50 %."""
    draft.variation = _log_uniform(rng, 0.25, 0.5)


def _heavy_tail(draft: Draft, rng: np.random.Generator) -> None:
    """One run in ten costs five times as much."""
    draft.heavy_tail = True


def _edge(draft: Draft, rng: np.random.Generator) -> None:
    """The best batch size is the smallest or the largest."""
    draft.bottom = float(rng.choice(draft.octaves[[0, -1]]))


def _cliff(draft: Draft, rng: np.random.Generator) -> None:
    """The best batch size is the last that converges: no larger one does, or no smaller one."""
    index = int(rng.integers(1, len(draft.sizes) - 1))
    draft.bottom = float(draft.octaves[index])
    order = np.arange(len(draft.sizes))
    draft.fails = order > index if rng.integers(2) else order < index
    draft.default = int(rng.choice(order[~draft.fails]))


def _far(draft: Draft, rng: np.random.Generator) -> None:
    """The default is four octaves from the bottom, or at the edge farthest from it."""
    distance = np.abs(draft.octaves - draft.bottom)
    draft.default = int(np.argmin(np.abs(distance - min(4.0, distance.max()))))


def _default_fails(draft: Draft, rng: np.random.Generator) -> None:
    """The default and all that are larger never converge, or it and all that are smaller.

    The bottom is not among these.
    """
    order = np.arange(len(draft.sizes))
    if rng.integers(2):
        draft.default, end = int(rng.integers(1, len(order))), 0
        draft.fails = order >= draft.default
    else:
        draft.default, end = int(rng.integers(0, len(order) - 1)), -1
        draft.fails = order <= draft.default
    draft.bottom = float(rng.uniform(*np.sort(draft.octaves[[draft.default, end]])))


def _memory(draft: Draft, rng: np.random.Generator) -> None:
    """All runs of batch sizes above one run out of memory."""
    limit = int(rng.integers(1, len(draft.sizes) - 1))
    draft.memory[limit + 1 :] = 1.0


def _shared_memory(draft: Draft, rng: np.random.Generator) -> None:
    """One run in five runs out of memory, and all above a batch size."""
    draft.memory[:] = 0.2
    _memory(draft, rng)


def _failing(draft: Draft, rng: np.random.Generator) -> None:
    """3 to 20 % of the runs never reach the target."""
    draft.failing = rng.uniform(0.03, 0.2)


def _two_valleys(draft: Draft, rng: np.random.Generator) -> None:
    """Slopes of 15 to 60 %, and a second valley whose bottom is 5 to 30 % dearer."""
    draft.left, draft.right = _slope(rng, 0.15, 0.6), _slope(rng, 0.15, 0.6)
    ends = draft.octaves[[0, -1]]
    quarter = (ends[1] - ends[0]) / 4
    bottoms = rng.permutation(
        [ends[0] + rng.uniform(0, quarter), ends[1] - rng.uniform(0, quarter)]
    )
    draft.bottom, other = bottoms.tolist()
    draft.second = other, rng.uniform(0.05, 0.26)


def _changes(draft: Draft, rng: np.random.Generator, log_cost: float) -> None:
    """At once or in eight steps; every other job's bottom also moves by up to two octaves."""
    steps = int(rng.choice([1, 8]))
    moved = float(rng.uniform(-2, 2)) if rng.integers(2) else 0.0
    draft.changes = [(log_cost * i / steps, moved * i / steps) for i in range(steps + 1)]
    draft.horizon = max(draft.horizon, 2 * _STILL)
    first = rng.uniform(0.1, 1) * (draft.horizon - _STILL)
    draft.phase_length = max(1, round(first / steps))


def _dearer(draft: Draft, rng: np.random.Generator) -> None:
    """The job becomes dearer by 10 to 100 %."""
    _changes(draft, rng, _slope(rng, 0.1, 1.0))


def _cheaper(draft: Draft, rng: np.random.Generator) -> None:
    """The job becomes cheaper by 10 to 50 %."""
    _changes(draft, rng, -_slope(rng, 0.1, 1.0))


def _to_and_fro(draft: Draft, rng: np.random.Generator) -> None:
    """Every 20 to 80 recurrences, the job becomes dearer by 10 to 60 %, or as cheap as before."""
    dearer, moved = _slope(rng, 0.1, 0.6), float(rng.uniform(-2, 2)) if rng.integers(2) else 0.0
    draft.horizon = max(draft.horizon, 2 * _STILL)
    draft.phase_length = int(rng.integers(20, 81))
    phases = (draft.horizon - _STILL) // draft.phase_length + 1
    draft.changes = [(dearer * (i % 2), moved * (i % 2)) for i in range(phases)]


KINDS: dict[str, Callable[[Draft, np.random.Generator], None]] = {
    "ordinary": _ordinary,
    "gentle": _gentle,
    "steep": _steep,
    "lopsided": _lopsided,
    "noisy": _noisy,
    "heavy_tail": _heavy_tail,
    "few_sizes": _ordinary,
    "many_sizes": _ordinary,
    "edge": _edge,
    "cliff": _cliff,
    "far": _far,
    "default_fails": _default_fails,
    "memory": _memory,
    "shared_memory": _shared_memory,
    "failing": _failing,
    "two_valleys": _two_valleys,
    "dearer": _dearer,
    "cheaper": _cheaper,
    "to_and_fro": _to_and_fro,
    "overlapping": _ordinary,
}


def _workload(draft: Draft, rng: np.random.Generator, name: str) -> Workload:
    spread = math.sqrt(math.log1p(draft.variation**2))
    draws = np.exp(spread * _QUANTILES)
    draws = rng.permutation(draws / draws.mean())
    if draft.heavy_tail:
        draws[::10] *= 5
    draws[: round(len(draws) * draft.failing)] = math.inf
    phases = [_phase(draft, draws, name, *change) for change in draft.changes or [(0.0, 0.0)]]
    if len(phases) == 1:
        return phases[0]
    return replace(phases[0], phases=tuple(phases), phase_length=draft.phase_length)


def _phase(draft: Draft, draws: Floats, name: str, log_cost: float, moved: float) -> Workload:
    settings = {}
    valley = draft.valley(moved)
    on_the_right = draft.octaves > draft.bottom + moved
    for index, size in enumerate(draft.sizes):
        # Small batches have dear epochs, large ones need more of them.
        more = valley[index] if on_the_right[index] else 0.0
        epochs = np.maximum(1, np.round(_BEST_EPOCHS * math.exp(more) * draws))
        epoch_s = math.exp(valley[index] - more + log_cost)
        settings[size] = Setting(
            (math.inf,) if draft.fails[index] else tuple(epochs.tolist()),
            {_POWER_W: Epoch(epoch_s, _POWER_W * epoch_s)},
            out_of_memory=float(draft.memory[index]),
        )
    default = draft.sizes[draft.default]
    return Workload(name, "synthetic", settings, default, MAX_EPOCHS, _POWER_W)
