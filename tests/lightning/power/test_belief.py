"""The belief about the cost of each limit: what rounding may not do to it."""

from __future__ import annotations

import numpy as np
import pytest

from zeus_lightning.power import belief
from zeus_lightning.power.belief import believe
from zeus_lightning.power.search import power_limits
from zeus_lightning.power.selectors import PowerPoint


def test_rounding_takes_no_variance_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two limits that are equal, windows alternate; 90 of them leave little variance."""
    limits_w = tuple(sorted(power_limits(200, 700, 25)))
    order = [700, 550, 600, 475, 300, 225, *([675, 650] * 45)]
    windows = [PowerPoint(limit_w, 265.0, 1.0) for limit_w in order]

    def covariance() -> belief.Floats:
        return believe(limits_w, windows, lambda point: point.time_s).covariance

    expected = covariance()
    assert np.linalg.eigvalsh(expected).min() > 0
    # A prior of the time of a batch that is ten times as wide must give the same belief.
    monkeypatch.setattr(belief, "_FLAT", 100.0)
    assert covariance() == pytest.approx(expected, rel=0.01, abs=1e-8)
