"""Where an earlier power profile comes from, and where a new one is stored.

A profile is looked for in the checkpoint that the run resumes from, in the file at `profile_path`,
and at the service, in this order. A new one is stored in the file and at the service.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError, ZeusServiceError
from zeus_lightning.power.loop import Recurring
from zeus_lightning.power.profile import PowerProfile, ProfileKey, parse
from zeus_lightning.power.zeus_profile import from_zeus, is_zeus_profile


@dataclass
class ProfileStore:
    """Power profiles in a file and at the service.

    Used by rank zero only. A file or service that cannot be used is a warning, not an error.

    Args:
        key: The run's GPUs and batch size.
        range_w: The lowest and highest limit that the GPUs take.
        path: The JSON file, if any.
        service: The service and the job there, if any.
        zeus_steps: Batches of each measurement in a file of Zeus's own optimizer.
    """

    key: ProfileKey
    range_w: tuple[int, int]
    path: Path | None
    service: tuple[BSOClient, str] | None
    zeus_steps: int

    @property
    def is_shared(self) -> bool:
        """Whether later runs find what is saved."""
        return self.path is not None or self.service is not None

    def nearest(self, resumed: PowerProfile | None) -> PowerProfile | None:
        """Return the profile of these GPUs whose batch size is nearest to the run's.

        The one in the checkpoint that the run resumes from, `resumed`, comes first.
        """
        if resumed is not None:
            with suppress(ZeusConfigError):  # the checkpoint of another machine, for example
                resumed.check_fits(self.key)
                return resumed
        wanted = self.key.batch_size
        profiles = self._in_file()
        if not any(profile.batch_size == wanted for profile in profiles):
            profiles += self._at_service()
        return min(profiles, key=lambda each: abs(math.log(each.batch_size / wanted)), default=None)

    def save(self, profile: PowerProfile) -> None:
        """Write a profile to the file, and send it to the service."""
        if self.path is not None:
            try:
                _write(self.path, profile.dumps())
                rank_zero_info(f"zeus: the power profile is in {self.path}")
            except OSError as error:
                rank_zero_warn(
                    f"zeus: the power profile cannot be written to profile_path {self.path}: "
                    f"{error}; the next run measures again"
                )
        if self.service is not None:
            client, job_id = self.service
            try:
                client.put_power_profile(job_id, profile.to_json())
            except (ZeusServiceError, ZeusConfigError) as error:
                rank_zero_warn(f"zeus: the power profile is not shared: {error.message}")

    def _in_file(self) -> list[PowerProfile]:
        if self.path is None:
            return []
        try:
            data = parse(self.path.read_bytes())
            if is_zeus_profile(data):
                return [self._of_zeus(data, self.path)]
            profile = PowerProfile.from_json(data)
            profile.check_fits(replace(self.key, batch_size=profile.batch_size))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ZeusConfigError) as error:
            rank_zero_warn(
                f"zeus: profile_path {self.path} cannot be used: {error}. The file is left as it "
                "is, and this run ignores it"
            )
            self.path = None
            return []
        return [profile]

    def _of_zeus(self, data: object, path: Path) -> PowerProfile:
        profile = from_zeus(data, self.key, self.zeus_steps, path.stat().st_mtime)
        low, high = self.range_w
        outside = [point.limit_w for point in profile.points if not low <= point.limit_w <= high]
        if outside:
            raise ZeusConfigError(
                f"Zeus's power profile has limits of {outside} W, but these GPUs take {low} to "
                f"{high} W; use another profile_path for this run"
            )
        rank_zero_info(
            f"zeus: profile_path {path} is a profile of Zeus's own optimizer, which names no GPUs "
            f"and no batch size: it is taken for these GPUs and batch size {self.key.batch_size}"
        )
        return profile

    def _at_service(self) -> list[PowerProfile]:
        if self.service is None:
            return []
        client, job_id = self.service
        try:
            model = self.key.device_model
            profiles = client.power_profiles(job_id, model, PowerProfile.from_json)
        except (ZeusServiceError, ZeusConfigError) as error:
            rank_zero_warn(f"zeus: no power profile is fetched: {error.message}")
            return []
        return [profile for profile in profiles if profile.num_devices == self.key.num_devices]


def find_service(
    url: str | None, job_id: str | None, token: str | None, recurring: Recurring | None
) -> tuple[BSOClient, str] | None:
    """Return the service and the job there with which profiles are shared, if any.

    Both are by default those of the recurring run; without one, the service of a `job_id` is by
    default `$ZEUS_SERVER_URL`. One without the other raises a `ZeusConfigError`.
    The token is by default the recurring run's at the same service, or else `$ZEUS_BSO_TOKEN`.
    """
    if recurring is not None:
        client = recurring._client
        url = url or (None if client is None else client.url)
        shared = client is not None and client.url == (url or "").rstrip("/") and token is None
        if url is not None and not shared:
            client = BSOClient(url, token)
        if job_id is None and recurring.job is not None:
            job_id = recurring.job.job_id
        return None if client is None or job_id is None else (client, job_id)
    if job_id is None:
        if url is None:
            return None
        raise ZeusConfigError(
            f"url is {url!r}, but there is no job_id, and no recurring run to take it from: pass "
            "job_id=..."
        )
    url = url or os.environ.get("ZEUS_SERVER_URL")
    if not url:
        raise ZeusConfigError(
            f"job_id is {job_id!r}, but there is no service: pass url=..., or set $ZEUS_SERVER_URL"
        )
    return BSOClient(url, token), job_id


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
