"""`Display`: a line for each try that has ended, and a progress bar over recurrences."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zeus_lightning.recur import progress as model
from zeus_lightning.recur.progress import Ending, Try
from zeus_lightning.recur.summary import short

HEADER = (
    f"{'try':>5}   {'batch size, why':<17} {'outcome':<13} {'epochs':>6} {'s':>8} {'J':>11} "
    f"{'cost (J)':>11}"
)
"""Above the lines of the tries; like them, it fits into 80 columns."""


class Display:
    """What the user sees while the driver runs; used in a `with`.

    Args:
        console: Where to print.
        recurrences: How many there are to be.
    """

    def __init__(self, console: Console, recurrences: int) -> None:
        self._bar = Progress(
            TextColumn("recurrences"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._bar.add_task("", total=recurrences)
        self._is_waiting = False
        self._has_header = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: model.Progress) -> None:
        """Show how far the recurrences are, and what runs."""
        self._is_waiting = False
        running = ", ".join(f"{each.recurrence} (try {each.attempt})" for each in progress.running)
        self._describe(f"running: {running}" if running else "")
        self._bar.update(self._task, completed=len(progress.done))

    def ended(self, each: Try, ending: Ending) -> None:
        """Print the line of a try that has ended."""
        if not self._has_header:
            self._bar.console.print(HEADER, highlight=False, soft_wrap=True)
        self._has_header = True
        style = "" if ending.verdict == "done" else "dim" if ending.verdict == "again" else "bold"
        self._bar.console.print(
            escape(line(each, ending)), style=style, highlight=False, soft_wrap=True
        )

    def wait_until(self, due_s: float) -> None:
        """Show when the next recurrence is due, in Unix seconds."""
        self._describe(f"next at {datetime.fromtimestamp(due_s):%Y-%m-%d %H:%M:%S}")

    def wait_for(self, url: str) -> None:
        """Show that the service does not answer; the first time, print it."""
        text = f"waiting for the service at {url}"
        if not self._is_waiting:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._is_waiting = True
        self._describe(text)

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=escape(text))


def line(each: Try, ending: Ending) -> str:
    """What a try was, and how it ended, in the columns of `HEADER`."""
    run, number = ending.run, f"{each.recurrence:>4}.{each.attempt:<2}"
    if ending.outcome == "no trial":
        return f"{number} no trial: no outcome file; does it use ZeusBSOCallback or Recurrence?"
    size, why = ("", "") if run is None else (run.trial.batch_size, run.trial.why)
    text = f"{number} {size:>6} {why:<10} {ending.outcome:<13}"
    if run is not None and run.report is not None and run.cost is not None:
        about = "~" if run.estimated else ""
        energy_j, cost_j = (f"{about}{short(each)}" for each in (run.report.energy_j, run.cost))
        text += f" {run.report.epoch:>6} {short(run.report.time_s):>8} {energy_j:>11} {cost_j:>11}"
    return text.rstrip()
