"""`Progress`: which try comes next, derived from the tries that have started and ended.

Pure: no process, no file, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from zeus_lightning.recur.ending import Ending

Mode = Literal["choose", "observe", "compare"]

_ERRORS_TO_STOP = 3
"""In a row, with the default batch size: then the program is wrong, not a batch size."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run.

    Args:
        recurrences: How many.
        retries: How many times a recurrence is tried again after its batch size failed.
        parallel: How many recurrences may run at once.
        mode: `observe` runs only control trials; `compare` runs them in each odd recurrence.
        seed: Each try's own seed is derived from it; None: the command chooses its seed.
        stop_on_error: Whether the first recurrence that fails stops the driver.
    """

    recurrences: int
    retries: int = 20
    parallel: int = 1
    mode: Mode = "choose"
    seed: int | None = None
    stop_on_error: bool = False

    def is_control(self, recurrence: int) -> bool:
        """Whether the trials of a recurrence are control trials."""
        return self.mode == "observe" or (self.mode == "compare" and recurrence % 2 == 1)


@dataclass(frozen=True, kw_only=True)
class Try:
    """One launch of the command; recurrences and their attempts count from 1."""

    recurrence: int
    attempt: int
    control: bool
    seed: int | None

    def __str__(self) -> str:
        return f"{self.recurrence:04}-{self.attempt:02}"


@dataclass
class Progress:
    """The tries of a run of the driver, in the order in which they started.

    Attributes:
        endings: How tries ended; a try that still runs has none.
        done: The recurrences that are complete.
        failed: Those of them that failed, or missed the target other than by a planned control.
        stop: Why no further try is launched; None while tries are launched.
        stopped_by: The try that caused the stop.
    """

    plan: Plan
    tries: list[Try] = field(default_factory=list)
    endings: dict[Try, Ending] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    stop: str | None = None
    stopped_by: Try | None = None

    def __post_init__(self) -> None:
        self._failures: dict[int, int] = defaultdict(int)
        self._errors = 0  # in a row, with the default batch size

    def resumed(self) -> None:
        """Forget what stopped an earlier driver, and how often recurrences had failed by then."""
        self.stop = self.stopped_by = None
        self._failures.clear()
        self._errors = 0

    def started(self, each: Try) -> None:
        """Record that a try has started."""
        self.tries.append(each)

    def ended(self, each: Try, ending: Ending) -> None:
        """Record that a try has ended; decide whether the driver must stop.

        A recurrence that stops it is not complete: a resumed driver tries it again.
        """
        self.endings[each] = ending
        result, run = ending.result, ending.run
        if result in ("done", "missed", "again"):
            self._errors = 0
        elif result == "failed" and run is not None:
            self._errors += run.trial.batch_size == run.default_batch_size
        stop = None
        if result == "stop" or (result == "failed" and self.plan.stop_on_error):
            stop = f"recurrence {each.recurrence}, try {each.attempt} {ending}"
        elif result == "failed" and self._errors >= _ERRORS_TO_STOP:
            stop = (
                f"recurrence {each.recurrence}, try {each.attempt} {ending}: {self._errors} errors "
                "in a row with the default batch size"
            )
        elif result == "again":
            self._failures[each.recurrence] += 1
            if self._failures[each.recurrence] > self.plan.retries:
                stop = (
                    f"recurrence {each.recurrence} has failed with every one of "
                    f"{self._failures[each.recurrence]} tries; --retries allows more"
                )
        if stop is not None and self.stop is None:
            self.stop, self.stopped_by = stop, each
        if stop is None and result in ("done", "missed", "failed"):
            self.done.add(each.recurrence)
            if result == "failed" or (result == "missed" and not each.control):
                self.failed.add(each.recurrence)

    @property
    def running(self) -> list[Try]:
        """The tries that have started and not ended."""
        return [each for each in self.tries if each not in self.endings]

    def next_retry(self) -> Try | None:
        """The try to launch at once, of a recurrence that is neither complete nor running."""
        last = {each.recurrence: each for each in self.tries}  # in the order of starts
        for recurrence, each in last.items() if self._may_launch else ():
            if each in self.endings and recurrence not in self.done:
                return self._try(recurrence, each.attempt + 1)
        return None

    def next_recurrence(self) -> Try | None:
        """The first try of the next recurrence; None if all have begun, or as many run as may."""
        begun = max((each.recurrence for each in self.tries), default=0)
        return (
            self._try(begun + 1, 1) if self._may_launch and begun < self.plan.recurrences else None
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing is left to launch."""
        if self.running:
            return False
        return self.stop is not None or len(self.done) >= self.plan.recurrences

    @property
    def _may_launch(self) -> bool:
        return self.stop is None and len(self.running) < self.plan.parallel

    def _try(self, recurrence: int, attempt: int) -> Try:
        seed = self.plan.seed
        if seed is not None:
            seed = Random(f"{seed}/{recurrence}/{attempt}").getrandbits(32)
        control = self.plan.is_control(recurrence)
        return Try(recurrence=recurrence, attempt=attempt, control=control, seed=seed)
