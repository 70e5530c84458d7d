"""An `eta_knob` from prices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning import ZeusConfigError, eta_knob_of_prices

PRICES = st.floats(1e-3, 1e3)
SPENT = st.floats(1e-3, 1e9)


@given(PRICES, PRICES, st.floats(10, 1e5), SPENT, SPENT)
def test_the_jobs_cost_is_proportional_to_the_prices_of_energy_and_time(
    kwh: float, hour: float, max_power_w: float, energy_j: float, time_s: float
) -> None:
    eta = eta_knob_of_prices(kwh, hour, max_power_w)

    def ratio(energy_j: float, time_s: float) -> float:
        cost = eta * energy_j + (1 - eta) * max_power_w * time_s
        return cost / (energy_j / 3.6e6 * kwh + time_s / 3600 * hour)

    assert ratio(energy_j, time_s) == pytest.approx(ratio(1, 1))


def test_a_price_of_one_alone_weighs_that_one_alone() -> None:
    assert eta_knob_of_prices(0.3, 0, 700) == 1
    assert eta_knob_of_prices(0, 2.5, 700) == 0


@pytest.mark.parametrize(
    ("kwh", "hour", "watts"),
    [(0, 0, 700), (-1, 1, 700), (1, math.nan, 700), (math.inf, 1, 700), (1, 1, 0)],
)
def test_what_is_no_price_is_an_error(kwh: float, hour: float, watts: float) -> None:
    with pytest.raises(ZeusConfigError, match="cannot compute eta_knob"):
        eta_knob_of_prices(kwh, hour, watts)
