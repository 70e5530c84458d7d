"""GPUs and the CPU packages of their host, counted together."""

from __future__ import annotations

from zeus_lightning.meters import EnergyMeter, Reading


class CombinedMeter:
    """Adds up a meter of GPUs and one of CPU packages and memory; an `EnergyMeter`.

    Both arguments are also attributes.

    Args:
        gpus: The meter of the GPUs.
        cpus: The meter of the packages. Ranks on one host share them, while each has its own GPUs.
    """

    def __init__(self, gpus: EnergyMeter, cpus: EnergyMeter) -> None:
        self.gpus, self.cpus = gpus, cpus
        self.name: str = f"{gpus.name}+{cpus.name}"
        self.devices: tuple[str, ...] = (*gpus.devices, *cpus.devices)
        self.device_model: str = f"{gpus.device_model} + {cpus.device_model}"
        self.max_power_w: float = gpus.max_power_w + cpus.max_power_w
        self.is_estimate: bool = gpus.is_estimate or cpus.is_estimate

    def read(self) -> Reading:
        """Return the energy of the GPUs and the packages since the meter was opened."""
        gpus, cpus = self.gpus.read(), self.cpus.read()  # the first waits for the GPUs
        return Reading(gpus.energy_j + cpus.energy_j, cpus.time_s, cpus.energy_j)

    def close(self) -> None:
        """Close both meters."""
        try:
            self.gpus.close()
        finally:
            self.cpus.close()
