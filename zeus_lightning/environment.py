"""Environment variables by which the program that launches a run instructs the callbacks.

`zeus-lightning recur` sets them; any other launcher may also set them.
"""

import os
from pathlib import Path

OUTCOME_FILE = "ZEUS_OUTCOME_FILE"
"""Names the file that the run writes its trial's record to; see docs/recurring.md."""

CONTROL = "ZEUS_CONTROL"
"""If set, other than to 0, the run is a control trial; see `is_control`."""


def is_control() -> bool:
    """Whether this run is a control trial: it trains with the default batch size and power limit.

    It measures what the job costs as it is, so it is not stopped early.
    """
    return os.environ.get(CONTROL, "") not in ("", "0")


def outcome_files() -> list[Path]:
    """The file that the run writes its trial's record to; empty if no launcher has named one."""
    name = os.environ.get(OUTCOME_FILE)
    return [Path(name)] if name else []
