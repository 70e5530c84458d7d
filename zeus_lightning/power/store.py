"""Where an earlier power profile comes from, and where a new one is stored.

A run looks for a profile in the file at `profile_path`, then at the service. It stores a new one in
both.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError, ZeusServiceError
from zeus_lightning.power.profile import PowerProfile, ProfileKey
from zeus_lightning.run.record import ShowsTrial, replace_file

Service = tuple[BSOClient, str]
"""The service, and the id of the job there."""


@dataclass
class ProfileStore:
    """Power profiles in a file and at the service.

    Used by rank zero only. A file or service that cannot be used is a warning, not an error.

    Args:
        key: The run's GPUs and batch size.
        path: The JSON file, if any.
        service: The service and the job there, if any.
    """

    key: ProfileKey
    path: Path | None
    service: Service | None

    def find(self) -> PowerProfile | None:
        """Return the profile of the run's GPUs and batch size, if there is one."""
        for read in (self._read_file, self._fetch):
            for profile in read():
                if profile.batch_size == self.key.batch_size:
                    return profile
        return None

    def save(self, profile: PowerProfile) -> None:
        """Write a profile to the file, and send it to the service."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.path, json.dumps(profile.to_json(), indent=2) + "\n")
                rank_zero_info(f"zeus: saved the power profile to {self.path}")
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
                rank_zero_warn(
                    "zeus: cannot send the power profile, so later runs may measure again: "
                    f"{error.message}"
                )

    def _read_file(self) -> list[PowerProfile]:
        if self.path is None:
            return []
        try:
            try:
                data = json.loads(self.path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise ZeusConfigError(f"it is not JSON: {error}") from error
            profile = PowerProfile.from_json(data)
            profile.check_fits(replace(self.key, batch_size=profile.batch_size))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ZeusConfigError) as error:
            rank_zero_warn(
                f"zeus: ignoring profile_path {self.path}: {error}; pass another path, or delete it"
            )
            self.path = None
            return []
        return [profile]

    def _fetch(self) -> list[PowerProfile]:
        if self.service is None:
            return []
        client, job_id = self.service
        try:
            gpus = self.key.device_model, self.key.num_devices
            return client.power_profiles(job_id, *gpus, PowerProfile.from_json)
        except (ZeusServiceError, ZeusConfigError) as error:
            rank_zero_warn(
                f"zeus: cannot fetch power profiles, so this run uses none: {error.message}"
            )
            return []


def find_service(recurring: ShowsTrial | None) -> Service | None:
    """Return the service and job with which profiles are shared, if any.

    They are the recurring run's. Without one, they are `$ZEUS_SERVER_URL` and `$ZEUS_JOB_ID`, if
    both are set; an invalid URL is a `ZeusConfigError`.
    """
    if recurring is not None:
        client, job = recurring._client, recurring.job
        if client is None or job is None or recurring.trial is None:
            return None
        return client, job.job_id
    url, job_id = os.environ.get("ZEUS_SERVER_URL"), os.environ.get("ZEUS_JOB_ID")
    return (BSOClient(url), job_id) if url and job_id else None
