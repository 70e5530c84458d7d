"""A power profile: to JSON and back, what is refused, and choosing again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs

PROFILE = PowerProfile(
    device_model="NVIDIA H200",
    num_devices=2,
    batch_size=256,
    points=(
        PowerPoint(700, 100.0, 0.10),
        PowerPoint(500, 80.0, 0.11),
        PowerPoint(300, 60.0, 0.15),
    ),
    chosen_w=500,
    selector="zeus-cost",
    eta_knob=0.5,
    max_power_w=1400.0,
    measured_at="2026-05-04T12:00:00Z",
)


@pytest.mark.parametrize(
    "point",
    [
        {"limit_w": 700, "energy_j": 0.0, "time_s": 1.0},
        {"limit_w": 700, "energy_j": "little", "time_s": 1.0},
        {"limit_w": 700, "energy_j": 10**400, "time_s": 1.0},
        {"limit_w": 700, "energy_j": 1.0, "time_s": float("nan")},
    ],
)
def test_an_invalid_point_is_refused(point: Any) -> None:
    data = PROFILE.to_json()
    with pytest.raises(ZeusConfigError, match="power profile"):
        PowerProfile.from_json({**data, "points": [*data["points"][1:], point]})


@given(data=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_whatever_its_points_are_it_is_a_profile_or_one_error(data: object) -> None:
    with contextlib.suppress(ZeusConfigError):
        profile = PowerProfile.from_json({**PROFILE.to_json(), "points": data})
        assert PowerProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_a_selector_that_chooses_a_limit_without_a_point_is_an_error() -> None:
    class Between:
        name = "between"

        def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
            return 400

    inputs = SelectorInputs(max_power_w=1400.0)
    with pytest.raises(ZeusConfigError, match="the selector chose 400 W, which was not measured"):
        PROFILE.choose_again(Between(), inputs)
