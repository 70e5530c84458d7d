"""The RAPL meter, on directories laid out as the kernel does."""

from __future__ import annotations

import os
import types
from pathlib import Path

import lightning.pytorch  # noqa: F401 - a warning would, while a counter stands still
import pytest
from fake_powercap import RANGE_UJ, FakePowercap
from forked import in_forked_child
from waiting import wait_until

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import rapl
from zeus_lightning.meters.rapl import RaplMeter

RANGE_J = RANGE_UJ / 1e6


def test_its_joules_are_those_of_the_packages(powercap: FakePowercap) -> None:
    powercap.add_package(0, energy_uj=5_000_000_000)
    powercap.add_package(1, energy_uj=7_000_000_000)
    meter = RaplMeter(powercap.root)
    before = meter.read()
    powercap.spend("intel-rapl:0", 10)
    powercap.spend("intel-rapl:1", 2.5)
    assert (meter.read() - before).energy_j == pytest.approx(12.5)
    assert meter.devices == ("package-0", "package-1")
    meter.close()


def test_nothing_is_counted_twice(powercap: FakePowercap) -> None:
    powercap.add_package(0)
    others = {
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:0:2": "package-0 by another name",
        "intel-rapl:1": "psys",
        "intel-rapl-mmio:0": "package-0",
        "dtpm:0": "package-0",
    }
    for zone, name in others.items():
        powercap.add_zone(zone, name)
    meter = RaplMeter(powercap.root)
    powercap.spend("intel-rapl:0", 10)
    for zone in others:
        powercap.spend(zone, 100)
    assert meter.devices == ("package-0",)
    assert meter.read().energy_j == pytest.approx(10)
    meter.close()


def test_a_counter_that_stands_still_while_this_process_computes_is_an_error(
    powercap: FakePowercap, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_s = [100.0]
    clock = types.SimpleNamespace(monotonic=lambda: 1.0, process_time=lambda: cpu_s[0])
    monkeypatch.setattr(rapl, "time", clock)
    powercap.add_package(0)
    meter = RaplMeter(powercap.root)
    cpu_s[0] = 104.0
    assert meter.read().energy_j == 0
    powercap.spend("intel-rapl:0", 1)
    cpu_s[0] = 120.0
    assert meter.read().energy_j == 1
    cpu_s[0] = 126.0
    with pytest.raises(ZeusMeterError, match=r"package-0 has not moved.*computed for 6 s"):
        meter.read()
    meter.close()


# Wrap-around


def test_a_counter_without_a_range_is_an_error_of_the_meter(powercap: FakePowercap) -> None:
    powercap.add_package(0)
    (powercap.root / "intel-rapl:0/max_energy_range_uj").write_text("0\n")
    with pytest.raises(ZeusMeterError, match="max_energy_range_uj is 0"):
        RaplMeter(powercap.root)


def test_no_wrap_around_is_missed_between_two_distant_readings(powercap: FakePowercap) -> None:
    powercap.add_package(0)
    meter = RaplMeter(powercap.root, sample_interval_s=0.01)
    for halves in range(1, 7):  # three times around
        powercap.spend("intel-rapl:0", RANGE_J / 2)
        sampled_uj = halves * RANGE_UJ // 2
        wait_until(lambda uj=sampled_uj: meter._packages[0]._total_uj >= uj)
    assert meter.read().energy_j == pytest.approx(3 * RANGE_J)
    meter.close()


# MaxPower


def test_max_power_is_the_sum_of_the_packages_rated_power(powercap: FakePowercap) -> None:
    powercap.add_package(0, rated_w=125)
    powercap.add_package(1, rated_w=150)
    meter = RaplMeter(powercap.root)
    assert meter.max_power_w == 275
    meter.close()


@pytest.mark.parametrize("rated", [{}, {"constraint_1_max_power_uw": 0}])
def test_without_a_rated_power_it_is_the_long_term_limit(
    powercap: FakePowercap, rated: dict[str, int]
) -> None:
    powercap.add_zone(
        "intel-rapl:0",
        "package-0",
        constraint_0_name="short_term",
        constraint_0_power_limit_uw=200_000_000,
        constraint_1_name="long_term",
        constraint_1_power_limit_uw=95_000_000,
        **rated,
    )
    meter = RaplMeter(powercap.root)
    assert meter.max_power_w == 95
    meter.close()


def test_where_packages_report_no_limit_it_is_a_figure_per_core_with_a_warning(
    powercap: FakePowercap,
) -> None:
    powercap.add_zone("intel-rapl:0", "package-0")
    with pytest.warns(UserWarning, match=r"package-0 reported no power limit.*3.5 W per logical"):
        meter = RaplMeter(powercap.root)
    assert meter.max_power_w == 3.5 * (os.cpu_count() or 1)
    meter.close()


# What can go wrong


def test_counters_only_root_may_read_give_an_error_that_names_the_fix(
    powercap: FakePowercap,
) -> None:
    powercap.add_package(0)
    counter = powercap.root / "intel-rapl:0" / "energy_uj"
    counter.chmod(0)

    def open_as_nobody() -> None:
        if os.getuid() == 0:  # who ignores file permissions
            os.setuid(65534)
        RaplMeter(powercap.root)

    with pytest.raises(ZeusMeterError, match=f"cannot read {counter}: ") as error:
        in_forked_child(open_as_nobody)
    for fix in ("CVE-2020-8694", "chmod a+r", "udev"):
        assert fix in str(error.value)
    page = (Path(__file__).parents[3] / "docs/meters.md").read_text()
    others = " ".join(page.partition("RAPL's counters")[2].split())
    assert "use `cpu-estimate`" in others


@pytest.mark.parametrize("there", [True, False])
def test_a_host_without_packages_is_an_error(powercap: FakePowercap, there: bool) -> None:
    root = powercap.root if there else powercap.root / "nowhere"
    with pytest.raises(ZeusMeterError, match=f'under {root} .*use meter="cpu-estimate"'):
        RaplMeter(root)


@pytest.mark.parametrize("content", ["", "a lot"])
def test_a_counter_that_is_no_number_is_an_error(powercap: FakePowercap, content: str) -> None:
    powercap.add_zone("intel-rapl:0", "package-0", max_energy_range_uj=content)
    with pytest.raises(ZeusMeterError, match=r"intel-rapl:0: invalid literal .*kernel module"):
        RaplMeter(powercap.root)


def test_a_counter_that_disappears_during_training_is_an_error(powercap: FakePowercap) -> None:
    powercap.add_package(0)
    powercap.add_package(1)
    meter = RaplMeter(powercap.root)
    meter.read()
    (powercap.root / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(ZeusMeterError, match=r"intel-rapl:1: .*kernel module"):
        meter.read()
    meter.close()
