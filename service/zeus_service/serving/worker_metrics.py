"""The files through which the workers of one server share their counters.

prometheus-client names them after the process and never deletes them, since counters must not go
backwards. Here they are named after a number, which a new worker takes over from one that has
ended, with its counts: there are no more of them than workers were alive at once. The folder of a
server that was killed is deleted by the next one that starts.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "zeus-service-metrics-"

_number = 0  # the master's; see `use_files`


def use_files(number: int) -> None:
    """Count in the files of this number from now on. No two processes may have the same at once."""
    global _number
    _number = number


def give_to(user: int, group: int) -> None:
    """Let workers that run as another user write their files."""
    if user != os.geteuid():
        os.chown(os.environ["PROMETHEUS_MULTIPROC_DIR"], user, group)


def set_up() -> None:
    """Create the folder, and remove it at exit; to be called before the metrics are imported.

    It is in memory: prometheus-client maps the files, and a write on a full disk would end the
    process (SIGBUS).
    """
    memory = os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ
    parent = Path("/dev/shm" if memory else tempfile.gettempdir())
    remove_folders_of_killed_servers(parent)
    folder = _new_folder(parent)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)  # read at import
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a worker, which inherits this
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)

    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call] # has no types
        process_identifier=lambda: _number
    )


def _new_folder(parent: Path) -> Path:
    """Create a folder that is locked until this process and all its workers have ended."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with contextlib.suppress(FileNotFoundError):  # taken for one of a killed server
            descriptor = os.open(folder, os.O_RDONLY)  # stays open
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return folder


def remove_folders_of_killed_servers(parent: Path) -> None:
    """Delete the folders that no living process has locked."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or just deleted
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)
