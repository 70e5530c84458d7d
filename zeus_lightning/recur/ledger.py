"""`Ledger`: the driver's record on disk, from which `--resume` continues."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from zeus_lightning.environment import OUTCOME_FILE
from zeus_lightning.errors import ZeusConfigError, ZeusError

_FILE = "ledger.jsonl"


class Ledger:
    """A file of JSON lines, one for each event, in a folder of its own for each run of the driver.

    Args:
        folder: Holds `run-0001`, `run-0002` and so on.
        resume: Whether to continue the last one; if not, a new one begins.

    Raises:
        ZeusConfigError: There is no run to continue, or processes of the last one still train: a
            second run of the same recurrence would compete with them for the GPUs.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        runs = sorted(folder.glob("run-[0-9]*"))
        begun = [run for run in runs if (run / _FILE).exists()]  # a start may fail before that
        if resume and not begun:
            raise ZeusConfigError(
                f"nothing to resume in {folder}; pass the same --folder as before"
            )
        number = 1 + int(runs[-1].name.removeprefix("run-")) if runs else 1
        self.folder = begun[-1] if resume else folder / f"run-{number:04}"
        self._path = self.folder / _FILE
        if begun and (living := _left_running(begun[-1] / _FILE)):
            raise ZeusConfigError(
                "runs of a driver that was killed still train, as process "
                f"{', '.join(map(str, living))}; wait until they have ended, or end them"
            )
        self.events = self._resumed() if resume else []

    def _resumed(self) -> list[dict[str, Any]]:
        """The events so far; a line torn when the driver was killed is cut off."""
        size = self._path.read_bytes().rfind(b"\n") + 1
        os.truncate(self._path, size)  # needs no space on a full disk
        try:
            return _read(self._path)
        except ValueError as error:
            raise ZeusConfigError(
                f"{self._path} is damaged ({error}); begin a new run, without --resume"
            ) from error

    def append(self, **event: Any) -> None:
        """Append an event; it is on disk when this returns. The first one makes the folder.

        Raises:
            OSError: The folder or the file cannot be made; there is nothing to resume.
            ZeusError: The file cannot be written, such as on a full disk.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(event) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.filename is not None:
                raise
            raise ZeusError(
                f"{self._path} cannot be written: {error.strerror}; once its disk has space, the "
                "same command with --resume goes on"
            ) from error


def _read(path: Path) -> list[dict[str, Any]]:
    *whole, _torn = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def _left_running(path: Path) -> list[int]:
    """The ids of the processes that belong to tries which a ledger has seen start, and not end.

    Each has inherited the name of its try's outcome file.
    """
    try:
        events = _read(path)
    except ValueError:  # damaged
        return []
    ended = [each["try"] for each in events if each["event"] == "ended"]
    started = [each for each in events if each["event"] == "started" and each["try"] not in ended]
    files = {each["outcome_file"] for each in started}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended, or is another user's
            if files and process.environ().get(OUTCOME_FILE) in files:
                found.append(process.pid)
    return found


@contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Let no other driver use a folder, until the context is left or this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ZeusError(
                f"another `zeus-lightning recur` uses the folder {folder}; pass another --folder"
            ) from None
        yield
