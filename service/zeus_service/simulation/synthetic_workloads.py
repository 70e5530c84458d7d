"""Synthetic workloads, generated from a seed."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from zeus_service.simulation.workload import Epoch, Setting, Workload

POWER_LIMITS_W = (100, 125, 150, 175, 200, 225, 250)
_IDLE_W = 50.0
_RUNS = 16
_MAX_EPOCHS = 200


def synthetic_workload(seed: int) -> Workload:
    """A workload whose cost over log2 of the batch size is a valley.

    The number of batch sizes, the valley's place and slopes, the noise of its runs, and how many
    batch sizes at the ends never reach the target are drawn from the seed.
    """
    rng = np.random.default_rng([seed, 2])
    sizes = [2 ** int(power) for power in range(3, 3 + int(rng.integers(5, 11)))]
    return _valley(
        rng,
        sizes,
        optimum=rng.uniform(0.15, 0.85) * (len(sizes) - 1),
        default=int(rng.integers(0, len(sizes))),
        shape=_Shape(
            left=float(rng.uniform(0.15, 0.8)),
            right=float(rng.uniform(0.15, 0.8)),
            noise=float(rng.choice([0.0, 0.02, 0.05, 0.1, 0.2])),
            edge=float(rng.uniform(2.5, 9.0)),
        ),
        seed=seed,
    )


def drifting_workload(seed: int, *, phases: int = 8, length: int = 40) -> Workload:
    """A synthetic workload whose optimum moves by three batch sizes, once, in small steps."""
    rng = np.random.default_rng([seed, 3])
    sizes = [2**power for power in range(3, 11)]
    shape = _Shape(
        left=float(rng.uniform(0.1, 0.3)),
        right=float(rng.uniform(0.1, 0.3)),
        noise=float(rng.choice([0.02, 0.05, 0.1])),
        edge=math.inf,
    )
    start = float(rng.uniform(1.0, len(sizes) - 2.0))
    end = start + 3 if start < (len(sizes) - 1) / 2 else start - 3
    workloads = [
        _valley(rng, sizes, float(optimum), round(start), shape, seed)
        for optimum in np.linspace(start, end, phases)
    ]
    name = f"drifting-{seed}"
    return replace(workloads[0], name=name, phases=tuple(workloads), phase_length=length)


class _Shape(NamedTuple):
    """The valley's slopes, the noise of its runs, and the distance from which they all fail."""

    left: float
    right: float
    noise: float
    edge: float


def _valley(
    rng: np.random.Generator,
    sizes: list[int],
    optimum: float,
    default: int,
    shape: _Shape,
    seed: int,
) -> Workload:
    settings = {}
    for index, size in enumerate(sizes):
        distance = index - optimum
        # Larger batches have shorter epochs, down to what the GPU can do, and need more of them.
        slope = shape.left if distance < 0 else shape.right
        cost = math.exp(slope * abs(distance) ** 1.3)
        epoch_s = 20.0 * (1 + 4.0 / (1 + index))
        epochs = 20.0 * cost * 20.0 / epoch_s
        runs = epochs * np.exp(rng.normal(0.0, shape.noise, _RUNS))
        reaches = abs(distance) < shape.edge
        target_epochs = [float(max(1, round(run))) if reaches else math.inf for run in runs]
        busy = 0.55 + 0.45 * index / (len(sizes) - 1)
        settings[size] = Setting(
            tuple(target_epochs), {limit: _epoch(epoch_s, limit, busy) for limit in POWER_LIMITS_W}
        )
    workload = Workload(
        name=f"synthetic-{seed}",
        gpu="simulated",
        settings=settings,
        default_batch_size=sizes[default],
        max_epochs=_MAX_EPOCHS,
        max_power_w=max(POWER_LIMITS_W),
    )
    # The default always converges, at no more than four times the lowest cost.
    best = workload.expected_cost(workload.oracle(0.5), 0.5)
    working = [
        size
        for size in sizes
        if max(settings[size].target_epochs) <= _MAX_EPOCHS
        and workload.expected_cost(size, 0.5) <= 4 * best
    ]
    nearest = min(working, key=lambda size: abs(sizes.index(size) - default))
    return replace(workload, default_batch_size=nearest)


def _epoch(time_s: float, limit_w: int, busy: float) -> Epoch:
    """An epoch on a GPU that would draw `busy` times its largest limit if it had no limit."""
    wanted_w = busy * max(POWER_LIMITS_W)
    power_w = min(limit_w, wanted_w)
    speed = ((power_w - _IDLE_W) / (wanted_w - _IDLE_W)) ** 0.4
    return Epoch(time_s / speed, time_s / speed * power_w)
