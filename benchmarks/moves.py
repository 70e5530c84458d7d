"""Jobs that move to other hardware and back: recorded GPUs, and 1 to 8 devices by simulation.

**Recorded.** A workload that was recorded on two GPUs is a job with the batch sizes of both, which
run out of memory on the GPU that lacks them. The default is the first GPU's; a fresh start on the
second one has that GPU's own. The cheapest power limit is known.

**Devices.** Each seed is a job on 1 to 8 devices of one model. With a batch of `b` on `d` devices,
a step takes `fixed + per_sample * b / d + link * log2(d)` seconds, where `fixed / per_sample` is
`L(4, 64)` samples and `link / fixed` is `U(0, 1)`, with `L` log-uniform and `U` uniform. A device
draws 60 W, and up to 250 W in proportion to its share of time with samples. The epochs are
`L(5, 40) * (1 + b / L(128, 4096))` (McCandlish et al., "An empirical model of large-batch
training", 2018), times a log-normal factor with a deviation of `L(2 %, 20 %)`, rounded up. There
are eight batch sizes, from 16 on; a device's memory holds `b / d` of 64 to 2048.

A job runs `N` times on the first hardware, `THERE` times on the second, and `THERE` times on the
first again. Another one alternates between the two, and is compared with two separate jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from excess import Case, Costs, Rows
from rich import box
from rich.table import Column, Table
from zeus_service.bandit.spec import Hardware
from zeus_service.simulation import recordings
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.workload import Epoch, Setting, Workload

BEFORE = (20, 60)
THERE = 30
ALTERNATING = (2, 10, 60)
"""After so many recurrences, an alternating job is compared with two that ran half as often."""
NOISE = 0.002
"""So much more excess counts as none: the replays are few."""
DEVICES = ((1, 2), (1, 8), (8, 1), (4, 8), (8, 4))
_BATCH_SIZES = [2**power for power in range(4, 12)]
_IDLE_W, _MAX_W = 60.0, 250.0


class Move(NamedTuple):
    """The same training on two kinds of hardware, with the same batch sizes and default.

    Args:
        fresh: The training on the second one as a job has it that starts there.
    """

    name: str
    first: Workload
    second: Workload
    fresh: Workload


@dataclass(frozen=True)
class OnDevices(Workload):
    """A workload on several devices."""

    devices: int = 1

    @property
    def hardware(self) -> Hardware:
        """What all runs are trained on."""
        return Hardware(self.gpu, self.devices, self.max_power_w, meter="simulated")


def recorded_moves(directory: Path) -> list[Move]:
    """Read the workloads that were recorded on two GPUs; one move in each direction."""
    workloads: dict[str, dict[str, Workload]] = {}
    for gpu in recordings.gpus(directory):
        for recipe in recordings.paper_recipes(directory, gpu):
            workload = recordings.read(directory, gpu, recipe)
            workloads.setdefault(recipe.dataset, {})[gpu] = workload
    moves = []
    for name, of_gpus in workloads.items():
        for a, b in permutations(of_gpus, 2):
            first = _with_all_sizes(of_gpus[a], of_gpus[b])
            fresh = _with_all_sizes(of_gpus[b], of_gpus[a])
            second = replace(fresh, default_batch_size=first.default_batch_size)
            moves.append(Move(f"{name}, {a} to {b}", first, second, fresh))
    return moves


def _with_all_sizes(workload: Workload, other: Workload) -> Workload:
    """Add the other's batch sizes, which run out of memory, and keep the cheapest power limits."""
    settings = {}
    known = list(workload.settings)
    for size in sorted(workload.settings.keys() | other.settings.keys()):
        nearest = min(known, key=lambda each: abs(math.log(each / size)))
        price = workload.settings[nearest].price(0.5, workload.max_power_w)
        draws = (workload.settings.get(size) or other.settings[size]).target_epochs
        settings[size] = Setting(
            draws, {price.power_limit_w: price.epoch}, out_of_memory=float(size not in known)
        )
    return replace(workload, settings=settings)


def device_moves(seeds: Sequence[int]) -> list[Move]:
    """Draw a job for each seed, and move it between numbers of devices."""
    moves = []
    for seed in seeds:
        for devices in DEVICES:
            first, second = (_on_devices(seed, each, min(devices)) for each in devices)
            moves.append(Move("{} to {} devices".format(*devices), first, second, second))
    return moves


def _on_devices(seed: int, devices: int, fewest: int) -> OnDevices:
    rng = np.random.default_rng([seed, 7])

    def log_uniform(low: float, high: float) -> float:
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))

    per_sample_s = 1e-3
    fixed_s = per_sample_s * log_uniform(4, 64)
    link_s = fixed_s * rng.uniform(0, 1)
    fewest_epochs, noise_scale = log_uniform(5, 40), log_uniform(128, 4096)
    draws = np.exp(log_uniform(0.02, 0.2) * rng.standard_normal((len(_BATCH_SIZES), 100)))
    memory = int(rng.choice([64, 128, 256, 512, 1024, 2048]))
    fits_all = [size for size in _BATCH_SIZES if size <= memory * fewest]
    default = int(rng.choice(fits_all))
    settings = {}
    for size, factors in zip(_BATCH_SIZES, draws, strict=True):
        busy_s = per_sample_s * size / devices
        step_s = fixed_s + busy_s + link_s * math.log2(devices)
        power_w = devices * (_IDLE_W + (_MAX_W - _IDLE_W) * busy_s / step_s)
        epoch_s = step_s * 50_000 / size
        epochs = np.ceil(fewest_epochs * (1 + size / noise_scale) * factors)
        settings[size] = Setting(
            tuple(epochs.tolist()),
            {_MAX_W: Epoch(epoch_s, power_w * epoch_s)},
            out_of_memory=float(size > memory * devices),
        )
    most = math.ceil(3 * max(np.median(each.target_epochs) for each in settings.values()))
    name = f"devices-{seed}"
    power_w = devices * _MAX_W
    return OnDevices(name, "simulated", settings, default, most, power_w, devices=devices)


def cases(moves: Sequence[Move], policies: Sequence[str], seeds: Sequence[int]) -> list[Case]:
    """All replays; `Case.row` names the move and the scenario."""
    return [
        Case(
            f"{move.name}: {scenario}",
            Experiment(workload, workload.spec(policy=policy, seed=seed), recurrences),
        )
        for move in moves
        for scenario, workload, recurrences in _scenarios(move)
        for policy in policies
        for seed in seeds
    ]


def _scenarios(move: Move) -> list[tuple[str, Workload, int]]:
    """Name the replays of a move: the workload and the number of recurrences of each."""
    first, second = move.first, move.second
    there = THERE // 10
    scenarios = [("fresh", move.fresh, THERE), ("staying", first, max(BEFORE) + THERE)]
    alternating = replace(first, phases=(first, second) * THERE, phase_length=1)
    scenarios.append(("alternating", alternating, 2 * THERE))
    for before in BEFORE:
        phases = (first,) * (before // 10) + (second,) * there + (first,) * there
        moving = replace(first, phases=phases, phase_length=10)
        scenarios.append((f"moving {before}", moving, before + 2 * THERE))
    return scenarios


def excess_table(rows: Rows) -> Table:
    """The excesses after a move and after moving back."""
    columns = ["fresh", *(f"after {n}" for n in BEFORE)]
    columns += [f"{where} {n}" for n in BEFORE for where in ("stayed", "back")]
    table = Table(Column("move, policy", no_wrap=True), box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right")
    for name, policies in excesses_of(rows).items():
        table.add_row(name)
        for policy, each in policies.items():
            table.add_row(f"  {policy}", *(f"{each[column]:.1%}" for column in columns))
    return table


def excesses_of(rows: Rows) -> dict[str, dict[str, dict[str, float]]]:
    """The excess in each column, by move and policy, as the mean over replays."""
    scenarios: dict[str, dict[str, dict[str, Sequence[Costs]]]] = {}
    for row, policies in rows.items():
        name, _, scenario = row.partition(": ")
        for policy, costs in policies.items():
            scenarios.setdefault(name, {}).setdefault(policy, {})[scenario] = costs
    found = {
        name: {policy: _columns(each) for policy, each in policies.items()}
        for name, policies in scenarios.items()
    }
    mean = {
        policy: {
            column: fmean(each[policy][column] for each in found.values()) for column in columns
        }
        for policy, columns in next(iter(found.values())).items()
    }
    return {**found, f"mean of {len(found)}": mean}


def checks(rows: Rows, policy: str) -> Iterator[tuple[bool, str]]:
    """Check what a move costs in the mean."""
    *_, means = excesses_of(rows).values()
    mean, limit = means[policy], f"(at most {NOISE:+.1%})"
    for n in BEFORE:
        share = mean[f"after {n}"] / mean["fresh"]
        yield share <= 0.25, f"after {n}: {share:.0%} of a fresh start's excess (at most 25 %)"
        lost = mean[f"back {n}"] - mean[f"stayed {n}"]
        yield lost <= NOISE, f"back after {n}: {lost:+.2%} against never having moved {limit}"
    for n in ALTERNATING:
        more = mean[f"alternating {n}"] - mean[f"separate {n}"]
        text = f"alternating, after {n}: {more:+.2%} against two separate jobs {limit}"
        yield more <= NOISE, text


def _columns(scenarios: Mapping[str, Sequence[Costs]]) -> dict[str, float]:
    def mean(scenario: str, begin: int, end: int) -> float:
        return fmean(each.excess(begin, end) for each in scenarios[scenario])

    columns = {"fresh": mean("fresh", 0, THERE)}
    for n in BEFORE:
        columns[f"after {n}"] = mean(f"moving {n}", n, n + THERE)
        columns[f"stayed {n}"] = mean("staying", n, n + THERE)
        columns[f"back {n}"] = mean(f"moving {n}", n + THERE, n + 2 * THERE)
    for n in ALTERNATING:
        columns[f"alternating {n}"] = mean("alternating", 0, n)
        columns[f"separate {n}"] = fmean(
            (first.spent[: n // 2].sum() + second.spent[: n // 2].sum())
            / (first.oracle[: n // 2].sum() + second.oracle[: n // 2].sum())
            - 1
            for first, second in zip(scenarios["staying"], scenarios["fresh"], strict=True)
        )
    return columns
