"""What is expected of the next trial."""

from __future__ import annotations

import math

import numpy as np
import pytest
from zeus_service.bandit.outlook import information_gain

NONE_RUNNING = np.zeros(2, int)


def test_a_run_tells_nothing_that_does_not_depend_on_which_is_sought() -> None:
    rng = np.random.default_rng(0)
    values, sought = rng.normal(size=(10_000, 2)), rng.integers(2, size=10_000)
    gain = information_gain(values, sought, 0.1, NONE_RUNNING)
    assert gain == pytest.approx(0, abs=1e-3)


def test_what_few_draws_show_by_chance_is_not_information() -> None:
    """Ten batch sizes are each sought in about 20 draws, whose means differ by chance."""
    rng, gains = np.random.default_rng(0), []
    for _ in range(400):
        values, sought = rng.normal(size=(200, 2)), rng.integers(10, size=200)
        gains.append(information_gain(values, sought, 0.1, NONE_RUNNING))
    assert np.mean(gains) == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_a_run_tells_less_if_it_is_noisy_and_while_others_will_tell_the_same(
    noise: float,
) -> None:
    """In two draws, as often the one as the other, values are 1 and -1: variance 1."""
    values = np.tile([[1.0, 0.0], [-1.0, 0.0]], (50, 1))
    sought = np.tile([1, 0], 50)
    gains = [
        information_gain(values, sought, noise, np.array([running, 0])) for running in range(3)
    ]
    explained = [math.log1p((running + 1) / noise) for running in range(3)]
    assert [gain[0] for gain in gains] == pytest.approx(np.diff([0.0, *explained]))
    assert gains[0][1] == 0
