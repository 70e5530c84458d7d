"""Profiles that Zeus's own optimizer has saved; here its own code writes the files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, expected, fit, phases, power, zeus_warnings
from hypothesis import given
from hypothesis import strategies as st
from zeus.optimizer import power_limit as zeus

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.profile import ProfileKey, parse
from zeus_lightning.power.selectors import parse_selector
from zeus_lightning.power.store import from_zeus, is_zeus_profile

RUN = ProfileKey("Fake H100", 2, 64)


def saved(*measurements: tuple[int, float, float]) -> str:
    """The text that Zeus's optimizer writes: watts, joules and seconds of each measurement."""
    listed = [
        zeus.PowerLimitMeasurement(power_limit=limit_w, energy=energy_j, time=time_s)
        for limit_w, energy_j, time_s in measurements
    ]
    return str(zeus._PowerLimitMeasurementList(measurements=listed).json(indent=4))


def of_gpu(gpu: FakeGpu, limits_w: range, steps: int) -> str:
    """What Zeus's optimizer saves on the fake GPU."""
    points = {limit_w: expected(gpu, limit_w) for limit_w in limits_w}
    return saved(*((w, energy * steps, time * steps) for w, (energy, time) in points.items()))


AMOUNT = st.floats(0.1, 1e6)
MEASUREMENTS = st.dictionaries(st.integers(50, 900), st.tuples(AMOUNT, AMOUNT), min_size=1)


@given(MEASUREMENTS)
def test_each_selector_chooses_as_zeuss_own_does(points: dict[int, tuple[float, float]]) -> None:
    measured = [(limit_w, *values) for limit_w, values in sorted(points.items(), reverse=True)]
    data = parse(saved(*measured))
    assert is_zeus_profile(data)
    profile = from_zeus(data, RUN, 32, 0.0)  # a power of two: dividing by it is exact
    max_w = 2 * max(points)
    theirs = [
        zeus.PowerLimitMeasurement(power_limit=w, energy=energy_j, time=time_s)
        for w, energy_j, time_s in measured
    ]

    def chosen(selector: str, of_zeus: zeus.OptimumSelector) -> tuple[int, int]:
        ours = parse_selector(selector).select(profile.points, profile.inputs)
        return ours, of_zeus.select(theirs)

    def cost(limit_w: int) -> float:
        energy_j, time_s = points[limit_w]
        return 0.5 * energy_j + 0.5 * max_w * time_s

    # of equal ones, Zeus takes the highest limit
    ours, zeuss = chosen("energy", zeus.Energy())
    assert points[ours][0] == points[zeuss][0]
    ours, zeuss = chosen("time", zeus.Time())
    assert points[ours][1] == points[zeuss][1]
    ours, zeuss = chosen("zeus-cost", zeus.ZeusCost(eta_knob=0.5, world_size=2))
    assert cost(ours) == pytest.approx(cost(zeuss))
    ours, zeuss = chosen("max-slowdown:1.25", zeus.MaxSlowdownConstraint(1.25))
    assert ours == zeuss


def test_energy_and_time_are_those_of_one_batch_and_the_rest_is_the_runs() -> None:
    profile = from_zeus(parse(saved((300, 1200.0, 4.0), (200, 800.0, 4.8))), RUN, 40, 0.0)
    assert [(p.limit_w, p.energy_j, p.time_s) for p in profile.points] == [
        (300, 30.0, 0.1),
        (200, 20.0, 0.12),
    ]
    assert (profile.device_model, profile.num_devices, profile.batch_size) == ("Fake H100", 2, 64)
    assert (profile.max_power_w, profile.measured_at) == (600.0, "1970-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "data",
    [
        {"measurements": []},
        {"measurements": 3},
        {"measurements": [{"power_limit": 300, "energy": 1.0}]},
        {"measurements": [{"power_limit": 300, "energy": "much", "time": 1.0}]},
        {"measurements": [{"power_limit": 300, "energy": -1.0, "time": 1.0}]},
        {"measurements": [{"power_limit": 0, "energy": 1.0, "time": 1.0}]},
        {"measurements": [{"power_limit": 300, "energy": 1.0, "time": 1.0}] * 2},
    ],
)
def test_a_broken_one_is_an_error(data: Any) -> None:
    with pytest.raises(ZeusConfigError, match="power profile"):
        from_zeus(data, RUN, 40, 0.0)


def test_a_run_that_finds_one_trains_at_its_best_limit_and_leaves_the_file(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "power_limit.json"
    path.write_text(of_gpu(gpu, range(300, 75, -25), steps=4))
    before = path.read_text()
    callback, net = power(meter=gpu_meter, profile_path=path), GpuNet(gpu)
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(225, 200)]
    assert not callback.profiled
    assert callback.limit_w == 225
    assert callback.profile.points[0].energy_j == pytest.approx(expected(gpu, 300)[0])
    assert "is a profile of Zeus's own optimizer" in caplog.text
    assert path.read_text() == before
    assert gpu.limit_mw == 250_000


def test_one_of_gpus_with_other_limits_is_one_warning_and_does_not_count(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    path = tmp_path / "power_limit.json"
    path.write_text(saved((700, 3.0, 1.0), (300, 2.0, 2.0)))
    callback = power(meter=gpu_meter, profile_path=path, step_w=100)
    with pytest.warns(
        UserWarning, match=r"limits of \[700\] W, but these GPUs take 100 to 300 W"
    ) as warned:
        fit(callback, GpuNet(gpu))
    assert len(zeus_warnings(warned)) == 1
    assert callback.profiled
    assert "700" in path.read_text()
