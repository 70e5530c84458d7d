"""Which ranks' meters count, so that nothing is counted twice and nothing left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.strategies import SingleDeviceStrategy
from programs import StepMeter

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import Reading
from zeus_lightning.run.run_meter import Claim, RunMeter, check_models, counting_ranks

# Ranks that count whole groups of devices: a GPU each, a node's packages, or a shared list.
GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=16)


def claim(*devices: str, model: str = "H100", meter: str = "nvml") -> Claim:
    return Claim(list(devices), model, 300.0, meter)


@given(GROUPS)
def test_each_device_is_counted_by_the_lowest_rank_that_has_it(groups: list[int]) -> None:
    claims = [claim(f"{group}a", f"{group}b") for group in groups]
    ranks = counting_ranks(claims)
    assert ranks == sorted(groups.index(group) for group in set(groups))
    counted = [device for rank in ranks for device in claims[rank].devices]
    assert len(counted) == len(set(counted))
    assert set(counted) == {device for each in claims for device in each.devices}


def test_ranks_that_share_some_devices_and_not_others_are_refused() -> None:
    with pytest.raises(ZeusConfigError, match=r"rank 1 counts b, which a lower rank also counts"):
        counting_ranks([claim("a", "b"), claim("b", "c")])


def test_different_models_are_listed_by_rank() -> None:
    check_models([claim("a"), claim("b")])
    with pytest.raises(ZeusConfigError, match=r"H100 by nvml on rank 0, 2; A100 by nvml on rank 1"):
        check_models([claim("a"), claim("b", model="A100"), claim("c")])


def one_rank(meter: StepMeter) -> RunMeter:
    return RunMeter(meter, SingleDeviceStrategy())


def test_what_is_spent_counts_from_the_beginning_and_on_top_of_what_was_spent_before() -> None:
    meter = one_rank(StepMeter())
    meter.resume_from(Reading(100.0, 10.0))
    assert meter.spent_by_now() == Reading(100.0, 10.0)
    meter.begin()
    assert meter.spent() == Reading(106.0, 12.0)
    assert meter.spent_by_now() == Reading(112.0, 14.0)


def test_a_meter_that_fails_as_a_checkpoint_is_saved_leaves_the_last_figures() -> None:
    class Dying(StepMeter):
        def read(self) -> Reading:
            reading = super().read()
            if reading.time_s > 2:
                raise RuntimeError("CUDA error: unspecified launch failure")
            return reading

    meter = one_rank(Dying())
    meter.begin()
    last = meter.spent()
    assert meter.spent_by_now() == last == Reading(6.0, 2.0)


def test_a_meter_that_fails_counts_as_not_a_number_with_a_warning() -> None:
    class Dying(StepMeter):
        dead = False

        def read(self) -> Reading:
            if self.dead:
                raise ZeusMeterError("GPU 0 is lost")
            return super().read()

    its = Dying()
    meter = one_rank(its)
    meter.begin()
    its.dead = True
    with pytest.warns(UserWarning, match="GPU 0 is lost"):
        spent = meter.spent()
    assert spent.energy_j != spent.energy_j


def test_a_meter_that_was_passed_in_is_not_closed() -> None:
    class Closed(StepMeter):
        closed = False

        def close(self) -> None:
            self.closed = True

    its = Closed()
    one_rank(its).close()
    assert not its.closed
