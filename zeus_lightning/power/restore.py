"""Set a GPU's power limit for a while, and restore the earlier one however the process ends.

While a limit is set, a small file in the user's state directory, the *record*, names the process,
the limit found at the start, and the limits set since. The process keeps a lock on the file, which
the kernel releases when the process dies, even by SIGKILL. So a record without a lock was left by a
killed process, whichever process has its id by now: the next run on that GPU restores the limit,
and so does `restore_all`, the command `zeus-lightning reset-power-limits`. A second process is
refused while the record is locked.

A limit is restored only if the current one is one that the process set. A limit that anyone else
has set since stays, and so does the default of a driver that was restarted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
from platformdirs import user_state_path

from zeus_lightning.errors import ZeusPowerError
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.zeusd import find_zeusd

_RECORD_BYTES = 1024  # always written whole: a reader never sees parts of two records


def records_folder() -> Path:
    """Folder of the records: `$XDG_STATE_HOME/zeus-lightning/power-limits` on Linux."""
    return user_state_path("zeus-lightning") / "power-limits"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A process that sets a GPU's limit, and when it started, in Unix seconds.

    Args:
        found_mw: The limit before the process set one.
        set_mw: The limits that the process may have left: the last one that it set or found, and
            the one that it is about to set, which the driver may refuse.
        zeusd: Address of the daemon that set them for the process; None if it set them itself.
    """

    uuid: str
    pid: int
    process_started_at: float
    found_mw: int
    set_mw: tuple[int, ...] = ()
    zeusd: str | None = None

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.process_started_at)
        return f"process {self.pid} (started {since:%Y-%m-%d %H:%M:%S})"

    @classmethod
    def from_json(cls, text: bytes) -> Record | None:
        """Read a record from JSON text; None if the text is empty or broken."""
        try:
            data = json.loads(text)
            return cls(**{**data, "set_mw": tuple(data["set_mw"])})
        except (ValueError, TypeError, KeyError):
            return None


class TemporaryLimit:
    """A GPU's power limit, set for a while and restored; the caller closes `limit`.

    Attributes:
        found_mw: The limit found at the start, which will be restored.
        recovered: What was done about the limit that a killed process left; empty without one.

    Raises:
        ZeusPowerError: Another process sets the limit (`fields["cause"]` is `in_use`), the record
            cannot be written (`no_record`), or the limit cannot be read or set. The methods also
            raise it.
    """

    def __init__(self, limit: GpuLimit) -> None:
        self._limit = limit
        with _explain_record_errors(), ExitStack() as close_on_error:
            self._file = close_on_error.enter_context(closing(_RecordFile(limit.uuid)))
            killed = self._file.read()
            self.recovered = "" if killed is None else _undo_left(killed)
            self.found_mw = self._current_mw = limit.read_mw()
            self._record = Record(
                uuid=limit.uuid,
                pid=os.getpid(),
                process_started_at=psutil.Process().create_time(),
                found_mw=self.found_mw,
                zeusd=None if limit.zeusd is None else limit.zeusd.address,
            )
            self._file.write(self._record)
            close_on_error.pop_all()
        # Not atexit, which processes started by multiprocessing skip, such as ddp_spawn's ranks.
        # Forks of this process do not run it.
        self._finalizer = Finalize(None, self.restore, exitpriority=0)

    def set_w(self, limit_w: int) -> None:
        """Set the limit."""
        limit_mw = limit_w * 1000
        self._record = replace(self._record, set_mw=(self._current_mw, limit_mw))
        self._file.write(self._record)  # first: this process may be killed at any moment
        self._limit.set_mw(limit_mw)
        self._current_mw = limit_mw

    def is_unchanged(self) -> bool:
        """Return whether the current limit is the one last set here, or found."""
        return self._limit.read_mw() == self._current_mw

    def restore(self) -> str:
        """Restore the limit found at the start; a second call does nothing.

        After an error the record stays, so that the next run or `zeus-lightning reset-power-limits`
        tries again.

        Returns:
            A warning if someone else has set a limit since, else an empty string.
        """
        if self._file not in _open_files:
            return ""
        try:
            restored, message = _undo(self._record, self._limit)
            self._file.delete()
        finally:
            self._finalizer.cancel()
            self._file.close()
        return "" if restored else message


def restore_all(uuids: Collection[str] | None = None) -> Iterator[tuple[str, bool, str]]:
    """Restore every limit that a killed process left.

    Args:
        uuids: Of the GPUs. Default: all.

    Yields:
        A GPU's UUID; whether nothing remains to be done, also because a live process will restore
        the limit; and what was done, or why nothing was.
    """
    for path in sorted(records_folder().glob("*.json")):
        if uuids is not None and path.stem not in uuids:
            continue
        try:
            yield path.stem, True, _restore_one(path.stem)
        except ZeusPowerError as error:
            cause = error.fields["cause"]
            missing = cause in ("gpu_lost", "driver")
            remedy = f"; if this GPU is gone for good, delete {path}" if missing else ""
            yield path.stem, cause == "in_use", (error.fact if missing else error.message) + remedy
        except OSError as error:
            yield path.stem, False, f"{path}: {error.strerror or error}"


def check_settable(limit: GpuLimit) -> bool:
    """Set the current limit again, while no other process can set one.

    Returns:
        Whether a killed process has left a limit.

    Raises:
        ZeusPowerError: As `TemporaryLimit` would.
    """
    with _explain_record_errors(), closing(_RecordFile(limit.uuid)) as file:
        left_behind = file.read() is not None
        try:
            limit.check_permission()
        finally:
            if not left_behind:
                file.delete()
    return left_behind


def _restore_one(uuid: str) -> str:
    with closing(_RecordFile(uuid)) as file:
        record = file.read()
        if record is None:
            message = f"{file.path} was not a power-limit record and was removed"
        else:
            message = _undo_left(record)
        file.delete()
    return message


def _undo_left(record: Record) -> str:
    """Undo what a killed process set, through a daemon if it used one; return a message."""
    zeusd = find_zeusd() or find_zeusd(record.zeusd)
    with closing(GpuLimit(record.uuid, zeusd)) as limit:
        return _undo(record, limit)[1]


def _undo(record: Record, limit: GpuLimit) -> tuple[bool, str]:
    """Restore the limit found, unless someone else has set one since.

    Returns:
        Whether it was restored, and a message.
    """
    gpu, found = f"the power limit of {record.uuid}", f"{record.found_mw / 1000:g} W"
    current_mw = limit.read_mw()
    if current_mw == record.found_mw:
        return True, f"{gpu} is already {found}, its value before {record} changed it"
    if current_mw in record.set_mw:
        limit.set_mw(record.found_mw)
        return True, f"{gpu} was restored to {found}, its value before {record} changed it"
    return False, (
        f"{gpu} was changed by someone else after {record} set it, so it was not restored to "
        f"{found}"
    )


class _RecordFile:
    """The file of a GPU's record, locked by this process until it is closed."""

    def __init__(self, uuid: str) -> None:
        self.path = records_folder() / f"{uuid}.json"
        self._fd = _open_locked(self.path)
        _open_files.add(self)

    def read(self) -> Record | None:
        return Record.from_json(os.pread(self._fd, _RECORD_BYTES, 0))

    def write(self, record: Record) -> None:
        os.pwrite(self._fd, json.dumps(asdict(record)).ljust(_RECORD_BYTES).encode(), 0)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self in _open_files:
            _open_files.remove(self)
            os.close(self._fd)


def _open_locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with ExitStack() as close_unless_returned:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            close_unless_returned.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = Record.from_json(os.pread(fd, _RECORD_BYTES, 0))
                if owner is not None and owner.pid == os.getpid():
                    remedy = "use one search per process"
                else:
                    remedy = "wait for it to end"
                raise ZeusPowerError(
                    f"{owner or 'another process'} controls the power limit of {path.stem}; "
                    f"{remedy}",
                    {"cause": "in_use"},
                ) from None
            # Another process may have deleted the file before it was locked here.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    close_unless_returned.pop_all()
                    return fd


@contextmanager
def _explain_record_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ZeusPowerError(
            f"cannot record the power limit in {records_folder()} ({error.strerror}); set "
            "$XDG_STATE_HOME to a writable folder",
            {"cause": "no_record"},
        ) from error


_open_files: set[_RecordFile] = set()


def _close_in_fork() -> None:
    """Close the files in a forked child, which would keep their locks after its parent's end."""
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_fork)
