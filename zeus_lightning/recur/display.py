"""`Display`: a line for each try that has ended, and a progress bar over recurrences."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zeus_lightning.recur import progress as model
from zeus_lightning.recur.progress import Ending, Try


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

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, progress: model.Progress) -> None:
        """Show how far the recurrences are, and what runs."""
        self._is_waiting = False
        running = ", ".join(f"{each.recurrence} (try {each.attempt})" for each in progress.running)
        self._describe(f"running: {running}" if running else "")
        self._bar.update(self._task, completed=len(progress.done))

    def ended(self, each: Try, ending: Ending) -> None:
        """Print the line of a try that has ended."""
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
    """What a try was, and how it ended, in one line."""
    text = f"{each.recurrence:>4}.{each.attempt:<2} {'baseline ' * each.baseline}"
    run = ending.run
    if run is not None:
        text += f"batch size {run.trial.batch_size} ({run.trial.why}): "
    text += ending.outcome
    if ending.outcome == "no trial":
        text += (
            ": the run wrote no outcome file; does the command use ZeusBSOCallback or Recurrence?"
        )
    if run is not None and run.report is not None and run.cost is not None:
        report = run.report
        text += (
            f", {report.epoch} epochs, {report.time_s:.1f} s, {report.energy_j:.1f} J"
            f"{' (estimated)' * run.estimated}, cost {run.cost:.1f} J"
        )
    return text
