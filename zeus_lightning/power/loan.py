"""A power limit on loan: changed while training runs, and put back however it ends.

While a GPU's limit is on loan, a small file in the user's state directory names the process, the
limit found at the start, and the limits set since. The process holds a lock on it, which the
kernel drops when the process dies, in whatever way. So a file without a lock is what a killed
process left behind, whoever has its process id by now, and the next loan, or `settle_all`, puts
that limit back. A file with a lock refuses a second process.

A limit is put back only where the one in force is still ours. Where somebody else has set another
one meanwhile, theirs is the later wish; and after a restart of the driver, which forgets all
limits, there is nothing to put back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Literal

import psutil
from platformdirs import user_state_path

from zeus_lightning.errors import ZeusPowerError
from zeus_lightning.power.limits import PowerLimit

_RECORD_BYTES = 1024  # always written whole: what is read is one record, not parts of two
_Outcome = Literal["as found", "put back", "foreign"]


def records_folder() -> Path:
    """Where the files are kept: `$XDG_STATE_HOME/zeus-lightning/power-limits` on Linux."""
    return user_state_path("zeus-lightning") / "power-limits"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the file of a GPU says.

    Args:
        uuid: The GPU.
        pid: The process that has the loan.
        process_started_at: When that process started, in Unix seconds.
        found_mw: The limit before the loan.
        set_mw: What may be in force of this loan: the limit that was last set, or found, and the
            one about to be set, in case the process is killed just before or the driver refuses.
    """

    uuid: str
    pid: int
    process_started_at: float
    found_mw: int
    set_mw: tuple[int, ...] = ()

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.process_started_at)
        return f"process {self.pid} (running since {since:%Y-%m-%d %H:%M:%S})"

    @classmethod
    def from_json(cls, text: bytes) -> Record | None:
        """The record of a file's text; None where it is empty or broken."""
        try:
            data = json.loads(text)
            record = cls(**{**data, "set_mw": tuple(data["set_mw"])})
            str(record)
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            return None
        integers = (record.pid, record.found_mw, *record.set_mw)
        valid = isinstance(record.uuid, str) and all(type(value) is int for value in integers)
        return record if valid else None


class Loan:
    """The power limit of a GPU, to be changed and put back.

    Args:
        limit: The GPU's limit; stays the caller's to close.

    Attributes:
        found_mw: The limit found at the start, to be put back.
        left_behind: What was done about the limit that a killed process left behind, for a person;
            empty when there was none.

    Raises:
        ZeusPowerError: Another process has this GPU's limit on loan (`fields["why"]` is `in_use`),
            the file cannot be written (`no_record`), or the GPU cannot be read or set.
    """

    def __init__(self, limit: PowerLimit) -> None:
        self._limit = limit
        self._path = records_folder() / f"{limit.uuid}.json"
        self._fd: int | None = None
        self._finalizer: Finalize | None = None
        try:
            with _told_how_to_remember(self._path):
                self._fd = _lock(self._path)
                killed = Record.from_json(os.pread(self._fd, _RECORD_BYTES, 0))
                self.left_behind = "" if killed is None else _told(killed, _put_back(limit, killed))
                self.found_mw = self._in_force_mw = limit.read_mw()
                self._record = Record(
                    uuid=limit.uuid,
                    pid=os.getpid(),
                    process_started_at=psutil.Process().create_time(),
                    found_mw=self.found_mw,
                )
                self._write()
        except BaseException:
            self._let_go()
            raise
        _open.add(self)
        # Not atexit: processes that multiprocessing starts, as ddp_spawn's ranks, skip it. This one
        # is called there too, and not in forks of this process.
        self._finalizer = Finalize(None, self.give_back, exitpriority=0)

    def set_w(self, limit_w: int) -> None:
        """Set the limit.

        Raises:
            ZeusPowerError: It cannot be set.
        """
        limit_mw = limit_w * 1000
        self._record = replace(self._record, set_mw=(self._in_force_mw, limit_mw))
        self._write()  # first: this process may be killed at any moment
        self._limit.set_mw(limit_mw)
        self._in_force_mw = limit_mw

    def is_in_force(self) -> bool:
        """Whether the limit is still the one that was set here last, or found.

        Raises:
            ZeusPowerError: It cannot be read.
        """
        return self._limit.read_mw() == self._in_force_mw

    def give_back(self) -> str:
        """Put the limit found at the start back; giving back again does nothing.

        Returns:
            A warning for a person: somebody else has set a limit meanwhile. Else empty.

        Raises:
            ZeusPowerError: It cannot be put back. The file stays, so that the next run or
                `zeus-lightning reset-power-limits` tries again.
        """
        if self._fd is None:
            return ""
        try:
            outcome = _put_back(self._limit, self._record)
            self._path.unlink(missing_ok=True)
        finally:
            self._let_go()
        return _told(self._record, outcome) if outcome == "foreign" else ""

    def _write(self) -> None:
        assert self._fd is not None
        text = json.dumps(asdict(self._record))
        os.pwrite(self._fd, text.ljust(_RECORD_BYTES).encode(), 0)

    def _let_go(self) -> None:
        _open.discard(self)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def check_free(uuid: str) -> bool:
    """Check that a GPU's limit could be taken on loan, without doing it.

    Returns:
        Whether a killed process left a limit behind.

    Raises:
        ZeusPowerError: As `Loan`.
    """
    path = records_folder() / f"{uuid}.json"
    with _told_how_to_remember(path):
        fd = _lock(path)
        try:
            left_behind = Record.from_json(os.pread(fd, _RECORD_BYTES, 0)) is not None
            if not left_behind:
                path.unlink()
        finally:
            os.close(fd)
    return left_behind


def settle_all() -> Iterator[tuple[str, bool, str]]:
    """Put back every limit that a killed process left behind.

    Yields:
        A GPU, whether nothing is left to do there (a run that goes on does it itself), and what
        was done or is in the way.
    """
    for path in sorted(records_folder().glob("*.json")):
        try:
            yield path.stem, True, _settle(path)
        except ZeusPowerError as error:
            why = error.fields["why"]
            missing = why in ("gpu_lost", "driver")
            told = f"; if this GPU is gone for good, delete {path}" if missing else ""
            yield path.stem, why == "in_use", error.message + told
        except OSError as error:
            yield path.stem, False, str(error)


def _settle(path: Path) -> str:
    fd = _lock(path)
    try:
        record = Record.from_json(os.pread(fd, _RECORD_BYTES, 0))
        if record is None:
            told = f"{path} is not a record of power limits, and was removed"
        else:
            limit = PowerLimit(record.uuid)
            try:
                told = _told(record, _put_back(limit, record))
            finally:
                limit.close()
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)
    return told


@contextmanager
def _told_how_to_remember(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ZeusPowerError(
            f"cannot remember the power limit of GPU {path.stem} in {path}: {error}; let this user "
            "write there, or set XDG_STATE_HOME to a folder that it can write, so that the limit "
            "can be put back should the process be killed",
            {"why": "no_record"},
        ) from error


def _lock(path: Path) -> int:
    """Open a GPU's file and lock it.

    Raises:
        ZeusPowerError: A living process has it locked.
        OSError: It cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
        except BlockingIOError:
            owner = Record.from_json(os.pread(fd, _RECORD_BYTES, 0)) or "another process"
            os.close(fd)
            raise ZeusPowerError(
                f"the power limit of GPU {path.stem} is in use by {owner}; one run at a time can "
                "set it: wait for that one, or train on another GPU",
                {"why": "in_use"},
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the file was removed between our opening and locking it


def _put_back(limit: PowerLimit, record: Record) -> _Outcome:
    in_force_mw = limit.read_mw()
    if in_force_mw == record.found_mw:
        return "as found"
    if in_force_mw not in record.set_mw:
        return "foreign"
    limit.set_mw(record.found_mw)
    return "put back"


def _told(record: Record, outcome: _Outcome) -> str:
    found = f"{record.found_mw / 1000:g} W"
    match outcome:
        case "as found":
            return f"the power limit of GPU {record.uuid} is {found}, as {record} found it"
        case "put back":
            return (
                f"the power limit of GPU {record.uuid} is put back to {found}, as {record} found it"
            )
        case "foreign":
            return (
                f"the power limit of GPU {record.uuid} was changed by someone else after {record} "
                f"had set it, and is left so; it was {found} before"
            )


_open: set[Loan] = set()


def _forget_in_fork() -> None:
    """Close the files in a forked child: it would hold their locks after its parent's death."""
    for loan in list(_open):
        loan._let_go()


os.register_at_fork(after_in_child=_forget_in_fork)
