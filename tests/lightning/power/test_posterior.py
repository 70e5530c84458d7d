"""The posterior of the cost of each limit: its noise and its variances."""

from __future__ import annotations

import numpy as np
import pytest

from zeus_lightning.power import posterior
from zeus_lightning.power.posterior import infer
from zeus_lightning.power.search import power_limits
from zeus_lightning.power.selectors import PowerPoint


def test_rounding_takes_no_variance_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two limits that are equal, windows alternate; 90 of them leave little variance."""
    limits_w = tuple(sorted(power_limits(200, 700, 25)))
    order = [700, 550, 600, 475, 300, 225, *([675, 650] * 45)]
    windows = [PowerPoint(limit_w, 265.0, 1.0) for limit_w in order]

    def covariance() -> posterior.Floats:
        return infer(limits_w, windows, lambda point: point.time_s).covariance

    expected = covariance()
    assert np.linalg.eigvalsh(expected).min() > 0
    # A prior of the time of a batch that is ten times as wide must give the same posterior.
    monkeypatch.setattr(posterior, "_FLAT", 100.0)
    assert covariance() == pytest.approx(expected, rel=0.01, abs=1e-8)


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_the_noise_is_seldom_believed_to_be_much_smaller_than_it_is(noise: float) -> None:
    """With levels of noise three times apart, a third of these were."""
    limits_w = tuple(sorted(power_limits(100, 250, 25)))
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(60):
        windows = [
            PowerPoint(limit_w, 90 * slower * more, slower)
            for limit_w in (100, 150, 200, 250) * 4
            for slower, more in [1 + noise * rng.standard_normal(2)]
        ]
        variance = infer(limits_w, windows, lambda point: point.time_s).noise[0]
        ratios.append(np.sqrt(variance) / noise)
    assert np.mean(np.array(ratios) < 0.7) < 0.2
