"""How often the default reaches a learned target, and what that costs.

`reached` is the share of later runs that reach the target, over all jobs: 90 % is promised where
best values are normal. `10th percentile of jobs` is the share that a tenth of the jobs do not
exceed. `target` is the target's distance from the mean best value, in standard deviations of best
values. `worst of n` is the share that would reach the worst of the baselines. `--real` adds
trainings of scikit-learn's digits; its jobs share these trainings, so their error is larger than
printed.

`cost` compares two simulated jobs with the same draws, one of which learns its target: by how many
runs of the default to its target the learning one is dearer after 100 recurrences.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from zeus_service.bandit.learned_target import learn
from zeus_service.bandit.registry import DEFAULT_POLICY
from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation.replay import replay
from zeus_service.simulation.synthetic_workloads import synthetic_workload

COUNTS = (2, 3, 5)
RECURRENCES = 100
LATER_RUNS = 200

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

KINDS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(0.9, 0.01, shape),
    "skewed to bad runs": lambda rng, shape: 0.95 - 0.01 * rng.gamma(1.5, 1.0, shape),
    "skewed to good runs": lambda rng, shape: 0.9 + 0.01 * rng.gamma(1.5, 1.0, shape),
    "heavy tails (t, 3 degrees)": lambda rng, shape: 0.9 + 0.01 * rng.standard_t(3.0, shape),
    "bounded, near 1 (beta)": lambda rng, shape: rng.beta(200.0, 2.0, shape),
    "one run in ten is much worse": lambda rng, shape: (
        rng.normal(0.9, 0.01, shape) - 0.2 * (rng.random(shape) < 0.1)
    ),
    "1,000 samples at 0.95": lambda rng, shape: rng.binomial(1000, 0.95, shape) / 1000,
    "20 samples at 0.95": lambda rng, shape: rng.binomial(20, 0.95, shape) / 20,
}
"""The best values of a job's runs, one job a row; higher is better. No constant was chosen here."""


@dataclass(frozen=True)
class Row:
    """Shares of later runs that reach the target, and its distance in standard deviations."""

    reached: float
    error: float
    tenth: float
    distance: float
    worst: float


def coverage(draw: Draw, count: int, jobs: int) -> Row:
    """Let jobs of one kind learn their targets from `count` baselines each."""
    rng = np.random.default_rng([count, jobs])
    spec = _spec(count)
    first, later = np.split(draw(rng, (jobs, count + LATER_RUNS)), [count], axis=1)
    targets = np.array([learn(spec, row.tolist()) for row in first])
    shares = (later >= targets[:, None]).mean(axis=1)
    worst = (later >= first.min(axis=1)[:, None]).mean()
    distance = (later.mean() - targets.mean()) / later.std()
    error = shares.std() / math.sqrt(jobs)
    return Row(shares.mean(), error, np.quantile(shares, 0.1), distance, worst)


def train_digits(seed: int) -> tuple[float, float]:
    """Return minus the lowest validation loss, and the best accuracy, of a perceptron's training.

    The split, the weights and the order of the samples are the seed's. Training ends after three
    epochs without a lower loss, as `EarlyStopping` ends it, or after 40.
    """
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels))
    inputs = torch.tensor(images, dtype=torch.float32)[order] / 16
    classes = torch.tensor(labels)[order]
    held_out, training = torch.arange(360), torch.arange(360, len(labels))
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses, accuracies = [], []
    while len(losses) < 40 and min(losses[-3:], default=0) <= min(losses, default=0):
        for batch in training[torch.randperm(len(training))].split(64):
            optimizer.zero_grad()
            cross_entropy(net(inputs[batch]), classes[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            scores = net(inputs[held_out])
        losses.append(float(cross_entropy(scores, classes[held_out])))
        accuracies.append(float((scores.argmax(1) == classes[held_out]).float().mean()))
    return -min(losses), max(accuracies)


def real_kinds(runs: int) -> dict[str, Draw]:
    """The best values of trainings, of which each job has some in an order of its own."""
    torch.set_num_threads(1)
    best = np.array([train_digits(seed) for seed in range(runs)])

    def drawn_from(values: Floats) -> Draw:
        def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
            return rng.permuted(np.tile(values, (shape[0], 1)), axis=1)[:, : shape[1]]

        return draw

    return {"digits, loss": drawn_from(best[:, 0]), "digits, accuracy": drawn_from(best[:, 1])}


def cost(count: int, workloads: int) -> tuple[float, float]:
    """By how many runs of the default learning is dearer: mean, and its standard error."""
    more = []
    for number in range(workloads):
        workload = synthetic_workload(number)
        knobs = {"policy": DEFAULT_POLICY, "seed": number, "baseline_runs": count}
        spent = []
        for target in (1.0, None):
            spec = workload.spec(**knobs, target_metric=target)
            spent.append(sum(each.cost for each in replay(workload, spec, RECURRENCES)))
        default = workload.expected_cost(workload.default_batch_size, spec.eta_knob)
        more.append((spent[1] - spent[0]) / default)
    return float(np.mean(more)), float(np.std(more) / math.sqrt(len(more)))


def _spec(count: int) -> JobSpec:
    return synthetic_workload(0).spec(target_metric=None, baseline_runs=count)


def main() -> None:
    """Print both tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=4000, help="made-up jobs of each kind")
    parser.add_argument("--workloads", type=int, default=60, help="simulated workloads")
    parser.add_argument("--real", type=int, default=0, help="trainings of digits, 205 or more")
    arguments = parser.parse_args()
    kinds = KINDS | (real_kinds(arguments.real) if arguments.real else {})
    print("| best values | n | reached | 10th percentile of jobs | target | worst of n |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, draw in kinds.items():
        for count in COUNTS:
            row = coverage(draw, count, arguments.jobs)
            print(
                f"| {name} | {count} | {row.reached:.1%} ± {row.error:.1%} | {row.tenth:.0%} "
                f"| mean - {row.distance:.1f} sd | {row.worst:.0%} |"
            )
    print("\n| n | cost |\n| --- | --- |")
    for count in COUNTS:
        mean, error = cost(count, arguments.workloads)
        print(f"| {count} | {mean:+.2f} ± {error:.2f} runs of the default |")


if __name__ == "__main__":
    main()
