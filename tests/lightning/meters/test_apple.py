"""The meter of Apple silicon, on a module that stands in for the one that only macOS has."""

from __future__ import annotations

import pytest
from apple_silicon import as_on_a_mac, on_macos

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import open_meter


def test_its_joules_are_the_sum_of_the_chips_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = as_on_a_mac(monkeypatch)
    with pytest.warns(UserWarning, match="reported no power limit"):
        meter = open_meter("apple")
    found.gpu_mj += 5500
    assert meter.read().energy_j == 5.5
    found.cpu_total_mj = found.gpu_mj = found.ane_mj = None
    with pytest.raises(ZeusMeterError, match="reports no energy"):
        meter.read()
    meter.close()


def test_elsewhere_the_error_names_what_it_needs() -> None:
    with pytest.raises(ZeusMeterError, match=r"Apple silicon Mac.*pip install zeus-apple-silicon"):
        open_meter("apple")


def test_auto_chooses_it_on_macos_where_its_package_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_macos(monkeypatch)
    assert open_meter("auto").name == "cpu-estimate"
    as_on_a_mac(monkeypatch)
    with pytest.warns(UserWarning, match="reported no power limit"):
        assert open_meter("auto").name == "apple"
    with pytest.raises(ZeusMeterError, match="RAPL"):
        open_meter("rapl")
