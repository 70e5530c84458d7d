"""Environment variables by which the program that launches a run instructs the callbacks.

`zeus-lightning recur` sets them; any other launcher may, too.
"""

import os

OUTCOME_FILE = "ZEUS_OUTCOME_FILE"
"""Names the file that the run writes its trial's record to; see docs/recurring.md."""

OBSERVE = "ZEUS_OBSERVE"
"""If set, other than to 0, the run measures a baseline; see `is_baseline`."""

BASELINE_SUFFIX = "-baseline"
"""What is appended to the id of the job whose baseline is measured: a job keeps its policy."""

BASELINE_POLICY = "default"
"""The service's policy that takes the default batch size, always, and stops no run early."""

EXIT_TRY_AGAIN = 75
"""Exit status of a run whose batch size has failed, with `on_failure="exit"`: run the job again.

It is EX_TEMPFAIL of sysexits.h: a temporary failure, which is to be tried again.
"""


def is_baseline() -> bool:
    """Whether this run trains with the default batch size and power limit, and only measures."""
    return os.environ.get(OBSERVE, "") not in ("", "0")
