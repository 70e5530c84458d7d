"""What energy costs: the `eta_knob` of its price, and its emissions and price in words."""

from __future__ import annotations

import math
import os

from zeus_lightning.errors import ZeusConfigError


def eta_knob_of_prices(price_per_kwh: float, price_per_hour: float, max_power_w: float) -> float:
    """Return the `eta_knob` at which a job's cost is proportional to the price of its runs.

    With it, Zeus's cost (You, Chung and Chowdhury, NSDI 2023), eta ETA + (1 - eta) MaxPower TTA, is
    a multiple of `ETA price_of_energy + TTA price_of_time`. `eta_knob` is fixed per job: if prices
    vary, use their mean, or one job id per tariff.

    Args:
        price_per_kwh: Price of one kWh, in any currency or in grams of CO2.
        price_per_hour: Price of one hour of the run in the same unit, such as the machine's rent.
        max_power_w: MaxPower of the run's devices in watts, times the PUE if there is one.

    Raises:
        ZeusConfigError: A price is negative or not finite, both are zero, or MaxPower is not
            positive.

    Example:
        >>> round(eta_knob_of_prices(0.30, 2.50, max_power_w=700), 3)
        0.077
    """
    prices = (price_per_kwh, price_per_hour)
    valid = all(math.isfinite(price) and price >= 0 for price in prices) and any(prices)
    if not (valid and math.isfinite(max_power_w) and max_power_w > 0):
        raise ZeusConfigError(
            f"cannot compute eta_knob from prices of {price_per_kwh} per kWh and {price_per_hour} "
            f"per hour at {max_power_w} W: prices must be finite, not negative and not both zero, "
            "and watts positive"
        )
    energy_per_hour = price_per_kwh * max_power_w / 1e3
    return energy_per_hour / (energy_per_hour + price_per_hour)


def emissions_and_price(energy_j: float) -> str:
    """The CO2e and the price of some joules, by the rates per kWh that the environment has.

    Returns:
        Such as `, 0.0012 kg CO2e, 0.00094 for electricity`; empty without rates.

    Raises:
        ZeusConfigError: A rate is not a finite number, or is negative.
    """
    text = ""
    for name, unit, scale in (
        ("ZEUS_CARBON_INTENSITY", "kg CO2e", 1e-3),  # from grams
        ("ZEUS_PRICE_PER_KWH", "for electricity", 1.0),
    ):
        rate = os.environ.get(name, "")
        if not rate:
            continue
        try:
            value = float(rate)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise ZeusConfigError(f"${name} is {rate!r}; it must be a number, 0 or more")
        text += f", {energy_j / 3.6e6 * value * scale:.3g} {unit}"
    return text
