"""The filter of a job's runs: words such as `cost>2.5kWh outcome:converged`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from zeus_service.db import queries
from zeus_service.units import ENERGIES

EXAMPLE = "cost>2.5kWh outcome:converged batch_size:512 since:2026-10-01"
_COST = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(" + "|".join(ENERGIES) + ")?")


def parse(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return arguments of `queries.list_trials`, and the words that make no sense."""
    found: dict[str, Any] = {}
    unknown = []
    for word in text.split():
        name, value = _parse(word)
        if value is None:
            unknown.append(word)
        else:
            found[name] = value
    return found, unknown


def _parse(word: str) -> tuple[str, object]:
    name, _, value = word.replace(">", ":", 1).partition(":")
    if name == "cost" and (cost := _COST.fullmatch(value)):
        return "above_cost", float(cost[1]) * ENERGIES[cost[2] or "Wh"]
    if name == "outcome" and value in (*queries.OUTCOMES, queries.RUNNING):
        return name, value
    if name == "batch_size" and re.fullmatch(r"[0-9]{1,9}", value):
        return name, int(value)
    if name == "since" and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        try:
            return name, datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
    return name, None
