"""What a trial trains on, and what measures its energy."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from pydantic import Field

from zeus_service.bandit.spec import Name, PositiveAmount, PositiveCount


@dataclass(frozen=True)
class Hardware:
    """The devices of a trial, over all nodes, and the meter of their energy.

    Args:
        device_model: The devices' model, as the meter names it.
        num_devices: How many devices train.
        max_power_w: Sum over the devices of the highest power limit that can be set, in watts.
        meter: The meter's name. Joules of different meters cannot be compared.
        estimated: Whether the meter estimates the joules instead of measuring them.
    """

    device_model: Name
    num_devices: PositiveCount
    max_power_w: PositiveAmount
    meter: Name
    estimated: Annotated[bool, Field(strict=True)] = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The hardware that these values describe, among others."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def key(self) -> str:
        """A text that no other hardware has."""
        power_w, estimated = self.max_power_w, self.estimated
        return json.dumps([self.device_model, self.num_devices, power_w, self.meter, estimated])


def devices_for_each(there: str, here: str) -> float:
    """How many devices the hardware with one key has for each of another's, if of one model.

    For other models it is 1.
    """
    (model, number, *_), (own_model, own_number, *_) = json.loads(there), json.loads(here)
    return number / own_number if model == own_model else 1.0
