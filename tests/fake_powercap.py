"""A directory of powercap files, laid out as Linux does under /sys/class/powercap."""

from __future__ import annotations

from pathlib import Path

RANGE_UJ = 262_143_328_850


class FakePowercap:
    """A powercap directory, without any zones at first.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def add_zone(self, zone: str, name: str, *, energy_uj: int = 0, **files: object) -> None:
        """Add a zone, such as `intel-rapl:0`; `files` are further files and their contents."""
        contents: dict[str, object] = {
            "name": name,
            "energy_uj": energy_uj,
            "max_energy_range_uj": RANGE_UJ,
        }
        (self.root / zone).mkdir()
        for file, content in (contents | files).items():
            (self.root / zone / file).write_text(f"{content}\n")

    def add_package(self, number: int, *, energy_uj: int = 0, rated_w: float = 120) -> None:
        """Add a CPU package with the constraints that Intel's have."""
        self.add_zone(
            f"intel-rapl:{number}",
            f"package-{number}",
            energy_uj=energy_uj,
            constraint_0_name="long_term",
            constraint_0_max_power_uw=round(rated_w * 1e6),
            constraint_0_power_limit_uw=round(rated_w * 1.1e6),
            constraint_1_name="short_term",
            constraint_1_max_power_uw=round(rated_w * 2e6),
            constraint_1_power_limit_uw=round(rated_w * 2e6),
        )

    def spend(self, zone: str, energy_j: float) -> None:
        """Let a zone's counter grow; past its range it starts again from zero."""
        counter = self.root / zone / "energy_uj"
        energy_uj = (int(counter.read_text()) + round(energy_j * 1e6)) % RANGE_UJ
        written = counter.with_suffix(".new")
        written.write_text(f"{energy_uj}\n")
        written.rename(counter)  # in one step: no reader may find the file empty
