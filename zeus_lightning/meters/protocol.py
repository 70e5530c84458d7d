"""The protocol of energy meters: facts about the devices, and a cumulative reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy and time read from a meter; the difference of two readings is a measurement.

    Args:
        energy_j: Joules over all devices since the meter was opened.
        time_s: Seconds on the clock of `time.monotonic`.
        cpu_energy_j: The part of `energy_j` that CPU packages and memory took, if the meter also
            counts GPUs.
    """

    energy_j: float
    time_s: float
    cpu_energy_j: float = 0.0

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            self.energy_j + other.energy_j,
            self.time_s + other.time_s,
            self.cpu_energy_j + other.cpu_energy_j,
        )

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(
            self.energy_j - earlier.energy_j,
            self.time_s - earlier.time_s,
            self.cpu_energy_j - earlier.cpu_energy_j,
        )


@runtime_checkable
class EnergyMeter(Protocol):
    """Counts the energy of some devices from the moment it is opened.

    A meter belongs to the process that opened it: open one in each rank, for that rank's device.

    Attributes:
        name: `nvml`, `rapl`, `nvml+rapl` or `cpu-estimate`. Figures of different meters cannot be
            compared.
        devices: What it counts, by names that are unique on the host: GPU UUIDs, RAPL packages. If
            several ranks of a run name the same devices, only the lowest rank's meter counts.
        device_model: Their model; several different ones are joined by ` + `.
        max_power_w: Sum over the devices of the highest settable power limit.
        is_estimate: Whether the figures are computed rather than measured.
    """

    name: str
    devices: tuple[str, ...]
    device_model: str
    max_power_w: float
    is_estimate: bool

    def read(self) -> Reading:
        """Return energy and time up to now; neither ever falls.

        Raises:
            ZeusMeterError: The devices cannot be read.
        """

    def close(self) -> None:
        """Release all resources; a second call does nothing, and no reading follows."""
