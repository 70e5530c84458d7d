"""Our `zeus` spends what the simulator published with the paper spends."""

from __future__ import annotations

from pathlib import Path

import pytest
from zeus_service.simulation import recordings
from zeus_service.simulation.experiment import Experiment, spent_over_oracle

SEEDS = 100
"""With these, the standard error of a mean is at most 0.002."""

PUBLISHED = {
    ("v100", "cifar100"): 1.073,
    ("v100", "librispeech"): 1.040,
    ("v100", "sentiment140"): 1.024,
    ("p100", "cifar100"): 1.103,
    ("p100", "librispeech"): 1.050,
    ("p100", "sentiment140"): 1.022,
}
"""Total cost over the oracle's at the full horizon, by the published simulator."""


@pytest.mark.parametrize(("gpu", "name"), PUBLISHED)
def test_zeus_spends_what_it_spends_in_the_published_simulator(
    published_traces: Path, gpu: str, name: str
) -> None:
    workload = recordings.read(published_traces, gpu, recordings.RECIPES[name])
    experiments = [
        Experiment(workload, workload.spec(policy="zeus", seed=seed), workload.horizon)
        for seed in range(SEEDS)
    ]
    spent = spent_over_oracle(map(Experiment.run, experiments))
    assert spent.error < 0.002
    assert spent.value == pytest.approx(PUBLISHED[gpu, name], abs=0.01)
