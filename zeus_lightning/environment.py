"""Environment variables by which the program that launches a run instructs the callbacks.

`zeus-lightning recur` sets them; any other launcher may, too.
"""

import os
from typing import Literal, cast, get_args

from zeus_lightning.errors import ZeusConfigError

OnFailure = Literal["raise", "stop", "exit"]
"""How a run ends whose batch size has failed."""

ON_FAILURE = "ZEUS_ON_FAILURE"
"""The `on_failure` of runs whose program passes none."""

OUTCOME_FILE = "ZEUS_OUTCOME_FILE"
"""Names the file that the run writes its trial's record to; see docs/recurring.md."""

CONTROL = "ZEUS_CONTROL"
"""If set, other than to 0, the run is a control trial; see `is_control`."""

EXIT_TRY_AGAIN = 75
"""Exit status of a run whose batch size has failed, with `on_failure="exit"`: run the job again.

It is EX_TEMPFAIL of sysexits.h: a temporary failure, which is to be tried again.
"""


def is_control() -> bool:
    """Whether this run is a control trial: it trains with the default batch size and power limit.

    It measures what the job costs as it is, so it is not stopped early.
    """
    return os.environ.get(CONTROL, "") not in ("", "0")


def on_failure_of(argument: str | None) -> OnFailure:
    """The argument `on_failure`, else `$ZEUS_ON_FAILURE`, else `raise`.

    Raises:
        ZeusConfigError: It is none of the three.
    """
    value = (os.environ.get(ON_FAILURE) or "raise") if argument is None else argument
    if value not in get_args(OnFailure):
        source = f"${ON_FAILURE}" if argument is None else "on_failure"
        raise ZeusConfigError(f"{source} is {value!r}; it must be 'raise', 'stop' or 'exit'")
    return cast("OnFailure", value)
