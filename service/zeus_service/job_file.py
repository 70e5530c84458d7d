"""A job's specification as a YAML file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from zeus_service import registration
from zeus_service.api.messages import Registration
from zeus_service.bandit.spec import JobSpec
from zeus_service.errors import InvalidJob, JobConflict, Unusable


def write(spec: JobSpec) -> str:
    """The text of a file that `register` accepts, with every field of a specification."""
    values = spec.model_dump(mode="json")
    return str(yaml.safe_dump(values, sort_keys=False, default_flow_style=None))


def register(path: Path) -> tuple[str, bool]:
    """Register the job that a file describes, or correct one that has had no trial.

    Args:
        path: A YAML mapping with the fields of a registration, such as `default_batch_size: 64`.

    Returns:
        The job's id, and whether it is new or has new values.

    Raises:
        Unusable: The file cannot be read, has an invalid field, or contradicts the registered job.
            The message has one line per error, such as `job.yaml: seed: must be an integer`.
    """
    values = _read(path)
    fields = JobSpec.model_fields
    found = [(str(name), "is not a field of a job") for name in values if name not in fields]
    if "monitor" in values and "higher_is_better" not in values:
        text = "add the line `higher_is_better: true`, or `false` if it falls to the target"
        found.append(("monitor", text))
    if found:
        raise _errors(path, found)
    try:
        given = Registration.model_validate(values)
        _, new = registration.register_job(
            given.job_id, given.values(), suggested={}, replace_unused=True
        )
    except ValidationError as error:
        found = [
            (".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, "))
            for each in error.errors()
        ]
    except InvalidJob as error:
        found = [(name, text) for name, (text,) in error.fields["errors"].items()]
    except JobConflict as error:
        found = [
            (name, f"registered {each['known']!r}, given {each['given']!r}")
            for name, each in error.fields["differences"].items()
        ]
    else:
        return given.job_id, new
    raise _errors(path, found)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unusable(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise Unusable(f"{path}: not a YAML mapping; write one field per line, as job_id: my-job")
    return values


def _errors(path: Path, found: Iterable[tuple[str, str]]) -> Unusable:
    """The error of some fields, with what is wrong with each."""
    return Unusable("\n".join(f"{path}: {name}: {text}" for name, text in found))
