"""A job's specification as a YAML file, whose errors name their lines."""

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
            The message has one line per error, such as `job.yaml:4: seed: must be an integer`.
    """
    values, lines = _read(path)
    try:
        given = Registration.model_validate(values)
        _, new = registration.register_job(
            given.job_id, given.values(), suggested={}, replace_unused=True
        )
    except ValidationError as error:
        found = [
            (each["loc"], each["msg"].removeprefix("Value error, ")) for each in error.errors()
        ]
    except InvalidJob as error:
        found = [(name.split("."), text) for name, (text,) in error.fields["errors"].items()]
    except JobConflict as error:
        found = [
            (
                (name,),
                f"is {each['given']!r}, but is registered as {each['known']!r}; use another job_id",
            )
            for name, each in error.fields["differences"].items()
        ]
    else:
        return given.job_id, new
    raise _errors(path, lines, found)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a file's fields, and the line of each."""
    try:
        text = path.read_text(encoding="utf-8")
        node, values = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unusable(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise Unusable(
            f"{path}: not a YAML mapping; write one field per line, such as `job_id: my-job`"
        )
    keys = [(key.value, key.start_mark.line + 1) for key, _ in node.value]
    lines = dict(keys)
    wrong = [
        ((name,), "is given twice" if name in JobSpec.model_fields else "is not a field of a job")
        for name, line in keys
        if name not in JobSpec.model_fields or line != lines[name]
    ]
    if wrong:
        raise _errors(path, lines, wrong)
    return values, lines


def _errors(path: Path, lines: dict[str, int], found: Iterable[tuple[Any, str]]) -> Unusable:
    """The error of fields, each with its location in the specification, and what is wrong."""
    return Unusable(
        "\n".join(
            f"{path}{f':{lines[place[0]]}' if place[0] in lines else ''}: "
            f"{'.'.join(map(str, place))}: {text}"
            for place, text in found
        )
    )
