"""The meter of Apple silicon, on a module that stands in for the one that only macOS has."""

from __future__ import annotations

import sys
import types

import pytest

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import open_meter


def test_its_joules_are_the_sum_of_the_chips_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.SimpleNamespace(cpu_total_mj=1000, gpu_mj=2000, dram_mj=None, ane_mj=0)
    monitor = types.SimpleNamespace(get_cumulative_energy=lambda: found)
    module = types.SimpleNamespace(AppleEnergyMonitor=lambda: monitor)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    with pytest.warns(UserWarning, match="reports no power limit"):
        meter = open_meter("apple")
    found.gpu_mj += 5500
    assert meter.read().energy_j == 5.5
    found.cpu_total_mj = found.gpu_mj = found.ane_mj = None
    with pytest.raises(ZeusMeterError, match="reports no energy"):
        meter.read()
    meter.close()
    with pytest.raises(ZeusMeterError, match="closed"):
        meter.read()


def test_elsewhere_the_error_names_what_it_needs() -> None:
    with pytest.raises(ZeusMeterError, match=r"macOS on such a chip.*zeus-lightning\[apple\]"):
        open_meter("apple")
