"""A power profile: to JSON and back, what is refused, and choosing again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.profile import PowerProfile, ProfileKey
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, parse_selector

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


def test_a_missing_member_is_named() -> None:
    for member in PROFILE.to_json():
        data = PROFILE.to_json()
        del data[member]
        with pytest.raises(ZeusConfigError, match=f"not a power profile: KeyError.'{member}'"):
            PowerProfile.from_json(data)


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


RUN = ProfileKey("NVIDIA H200", 2, 256)


@pytest.mark.parametrize(("field", "value"), [("num_devices", 1), ("batch_size", 128)])
def test_a_profile_of_another_run_is_refused_with_both_values(field: str, value: object) -> None:
    PROFILE.check_fits(RUN)
    other: Any = {field: value}
    with pytest.raises(ZeusConfigError) as caught:
        PROFILE.check_fits(replace(RUN, **other))
    for part in (field, repr(value), repr(getattr(RUN, field))):
        assert part in caught.value.message


def test_a_changed_selector_chooses_again_from_the_stored_points() -> None:
    inputs = SelectorInputs(eta_knob=0.5, max_power_w=1400.0)
    again = PROFILE.choose_again(parse_selector("energy"), inputs)
    assert again == replace(PROFILE, chosen_w=300, selector="energy")
    slower = SelectorInputs(eta_knob=1.0, max_power_w=1400.0)
    again = PROFILE.choose_again(parse_selector("zeus-cost"), slower)
    assert again == replace(PROFILE, chosen_w=300, eta_knob=1.0)


def test_a_selector_that_chooses_a_limit_without_a_point_is_an_error() -> None:
    class Between:
        name = "between"

        def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
            return 400

    inputs = SelectorInputs(max_power_w=1400.0)
    with pytest.raises(ZeusConfigError, match="the selector chose 400 W, which was not measured"):
        PROFILE.choose_again(Between(), inputs)
