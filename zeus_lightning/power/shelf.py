"""Where power profiles are kept for later runs: in a file, and by the service."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError, ZeusServiceError
from zeus_lightning.power.profile import PowerProfile


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is known before a run.

    Args:
        profile: Of this run's GPUs and batch size; None: it is to be measured.
        neighbour: Of the nearest batch size on these GPUs, where `profile` is None.
    """

    profile: PowerProfile | None = None
    neighbour: PowerProfile | None = None


class Shelf:
    """Profiles in a file and at the service. Nothing here raises: training goes on without.

    Args:
        path: A JSON file; None: no file.
        client: The service; None: no service.
        job_id: The job there.
    """

    def __init__(self, path: Path | None, client: BSOClient | None, job_id: str | None) -> None:
        self._path = path
        self._client = client
        self._job_id = job_id

    def find(self, device_model: str, num_devices: int, batch_size: int) -> Found:
        """Look for a profile of a run, in the file first."""
        kept = self._in_file(device_model, num_devices)
        if not any(profile.batch_size == batch_size for profile in kept):
            kept += self._at_service(device_model, num_devices)
        for profile in kept:
            if profile.batch_size == batch_size:
                return Found(profile=profile)
        kept.sort(key=lambda profile: abs(math.log(profile.batch_size / batch_size)))
        return Found(neighbour=kept[0] if kept else None)

    def save(self, profile: PowerProfile) -> None:
        """Keep a profile in the file, and send it to the service."""
        if self._path is not None:
            try:
                _write(self._path, profile.dumps())
                rank_zero_info(f"zeus: the power profile is in {self._path}")
            except OSError as error:
                rank_zero_warn(
                    f"zeus: the power profile cannot be written to profile_path {self._path}: "
                    f"{error}; the next run measures again"
                )
        if self._client is not None and self._job_id is not None:
            try:
                self._client.put_power_profile(self._job_id, profile)
            except (ZeusServiceError, ZeusConfigError) as error:
                rank_zero_warn(f"zeus: the power profile is not shared: {error.message}")

    def _in_file(self, device_model: str, num_devices: int) -> list[PowerProfile]:
        path = self._path
        if path is None:
            return []
        try:
            profile = PowerProfile.loads(path.read_bytes())
            profile.check_fits(
                device_model=device_model, num_devices=num_devices, batch_size=profile.batch_size
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ZeusConfigError) as error:
            rank_zero_warn(
                f"zeus: profile_path {path} cannot be used: {error}. The file is left as it is, "
                "and this run goes on as without it"
            )
            self._path = None
            return []
        return [profile]

    def _at_service(self, device_model: str, num_devices: int) -> list[PowerProfile]:
        if self._client is None or self._job_id is None:
            return []
        try:
            profiles = self._client.power_profiles(self._job_id, device_model)
        except (ZeusServiceError, ZeusConfigError) as error:
            rank_zero_warn(f"zeus: no power profile is asked for: {error.message}")
            return []
        return [profile for profile in profiles if profile.num_devices == num_devices]


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
