"""Requests and responses of the HTTP API about power profiles."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from zeus_service.api.messages import Message
from zeus_service.bandit.spec import REAL, Name, PositiveAmount, PositiveCount


class PowerPoint(Message):
    """Energy (J, over all GPUs) and time (s) of one training batch at one power limit (W)."""

    limit_w: PositiveCount
    energy_j: PositiveAmount
    time_s: PositiveAmount


def _text(value: Any) -> Any:
    """Refuse a number, which pydantic would read as seconds since 1970."""
    if isinstance(value, int | float):
        raise ValueError("must be a date and time, such as 2026-01-31T12:00:00Z")
    return value


class PowerProfile(Message):
    """Measurements for a batch size on some GPUs, and the power limit chosen from them."""

    device_model: Name
    driver: Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]
    num_devices: PositiveCount
    batch_size: PositiveCount
    points: Annotated[list[PowerPoint], Field(min_length=1, max_length=500)]
    chosen_w: PositiveCount
    selector: Name
    eta_knob: Annotated[float, Field(ge=0, le=1), REAL]
    max_power_w: PositiveAmount
    search: Name
    measured_at: Annotated[AwareDatetime, BeforeValidator(_text)]

    @model_validator(mode="after")
    def _is_consistent(self) -> PowerProfile:
        limits = [point.limit_w for point in self.points]
        if len(set(limits)) != len(limits):
            raise ValueError("points must not repeat a limit_w")
        if self.chosen_w not in limits:
            raise ValueError(f"chosen_w {self.chosen_w} is not the limit_w of a point")
        return self


class PowerProfileList(Message):
    """A job's power profiles, ordered by batch size."""

    profiles: list[PowerProfile]
