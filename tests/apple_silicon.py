"""A stand-in for `zeus_apple_silicon`, which only macOS has; a test sets what it shows."""

from __future__ import annotations

import sys
import types

import pytest


def as_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Let this machine be a Mac; returns the chip's figures, in millijoules."""
    found = types.SimpleNamespace(cpu_total_mj=1_000_000, gpu_mj=2_000_000, dram_mj=None, ane_mj=0)
    monitor = types.SimpleNamespace(get_cumulative_energy=lambda: found)
    module = types.SimpleNamespace(AppleEnergyMonitor=lambda: monitor)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    on_macos(monkeypatch)
    return found


def on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the meters, and nothing else, take this machine for one with macOS."""
    system = types.SimpleNamespace(system=lambda: "Darwin")
    monkeypatch.setattr("zeus_lightning.meters.platform", system)
