"""The emissions and the price of energy, in words."""

from __future__ import annotations

import math
import os

from zeus_lightning.errors import ZeusConfigError


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
