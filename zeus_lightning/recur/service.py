"""`Service`: the one that the runs use, which the driver may have started itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psutil

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError, ZeusError, ZeusServiceError
from zeus_lightning.recur.child import find_process, has_ended, identity
from zeus_lightning.recur.outcome_file import RunOutcome
from zeus_lightning.recur.signals import signals_deferred

_START_S = 60.0
_TIMEOUT_S = 2.0


class Service:
    """A service at `url`; used in a `with`.

    Raises, as the block is entered:
        ZeusServiceError: The service does not answer, or refuses the token.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = BSOClient(url).without_retries(_TIMEOUT_S)

    def __enter__(self) -> Self:
        BSOClient(self.url).check_access()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answers(self) -> bool:
        """Whether a run could start now."""
        try:
            self._client.server_version()
        except ZeusServiceError:
            return False
        return True

    def end_trial(self, run: RunOutcome, reason: str) -> None:
        """End the trial of a process that was killed, so that it need not wait for its lease."""
        with suppress(ZeusError):
            self._client.end_trial(run.trial, "interrupted", reason)


class OwnService(Service):
    """`zeus-service serve` on a free loopback port, until the block is left.

    One that a killed process has left, for the same database and log, is taken over.

    Args:
        database_url: Such as `sqlite:///FILE`.
        log: File for its output; a JSON file beside it names the process.
    """

    def __init__(self, database_url: str, log: Path) -> None:
        if find_spec("zeus_service") is None:
            raise ZeusConfigError(
                "zeus-service is not installed here, so it cannot be started: `pip install "
                "./service`, or pass the --url of one that runs elsewhere"
            )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            super().__init__(f"http://127.0.0.1:{probe.getsockname()[1]}")
        self._database_url = database_url
        self._log = log
        self._record_file = log.with_suffix(".json")
        self._log_start = 0  # where this service's output begins
        self._process: psutil.Process | None = None
        self._has_answered = False  # since its start

    def __enter__(self) -> Self:
        try:
            self._adopt()
            if self._process is None:
                self._start()
            self._wait_until_it_answers()
            return super().__enter__()
        except BaseException as error:
            if not isinstance(self._process, psutil.Popen):  # runs may use one that was taken over
                raise
            self._stop()
            if isinstance(error, ZeusServiceError) and error.fields.get("status") == 401:
                raise type(error)(
                    f"{error.message}. The service was started here and has a token, from "
                    "$ZEUS_BSO_TOKEN_FILE or this folder's .env file, which the runs do not read: "
                    "export it as ZEUS_BSO_TOKEN",
                    error.fields,
                ) from error
            raise

    def __exit__(self, *_: object) -> None:
        self._stop()

    def answers(self) -> bool:
        """Whether a run could start now; a service that has died is started again."""
        if self._process is not None and has_ended(self._process):
            self._start()
        answers = super().answers()
        self._has_answered |= answers
        return answers

    def _adopt(self) -> None:
        """Take over the service that a killed process has left, if it still answers."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # none is recorded
            record = json.loads(self._record_file.read_bytes())
            process, left = find_process(*record["service"]), Service(record["url"])
            if process is None or find_process(*record["owner"]) is not None:
                return
            if record["database"] == self._database and left.answers():
                self.url, self._client, self._process = left.url, left._client, process
                self._record_owner(process)

    @property
    def _database(self) -> str:
        """What two services of the same database share; a URL may have a password."""
        url = self._database_url
        is_relative = url.startswith("sqlite:///") and not url.startswith("sqlite:////")
        return sha256(f"{url} in {Path.cwd() if is_relative else '/'}".encode()).hexdigest()

    def _wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not super().answers():
            assert self._process is not None
            if has_ended(self._process) or time.monotonic() > deadline_s:
                raise ZeusError(f"the service did not start, and {self._log_end()}")
            time.sleep(0.05)
        self._has_answered = True

    def _log_end(self) -> str:
        """The last lines of the log, since the service was started."""
        text = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        if not text:
            return f"wrote nothing to {self._log}; its disk may be full"
        return f"{self._log} ends:\n" + "\n".join(text.splitlines()[-5:])

    def _start(self) -> None:
        self._has_answered = False
        with self._log.open("ab") as log, signals_deferred():
            self._log_start = log.tell()
            self._process = psutil.Popen(
                [
                    sys.executable,
                    "-m",
                    "zeus_service",
                    "serve",
                    f"--bind={self.url.removeprefix('http://')}",
                    "--workers=1",
                ],
                env={**os.environ, "ZEUS_BSO_DATABASE_URL": self._database_url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the runs first
            )
        self._record_owner(self._process)

    def _record_owner(self, process: psutil.Process) -> None:
        """Record that this process ends the service."""
        record = {
            "service": identity(process),
            "owner": identity(psutil.Process()),
            "url": self.url,
            "database": self._database,
        }
        with suppress(OSError):  # without the record, nothing will take it over
            self._record_file.write_text(json.dumps(record))

    def _stop(self) -> None:
        if self._process is not None:
            # SIGTERM waits for idle connections, such as a browser's; SIGQUIT dumps core until
            # the service handles it, which it does before it answers
            with suppress(psutil.NoSuchProcess):
                self._process.send_signal(signal.SIGQUIT if self._has_answered else signal.SIGTERM)
            while not has_ended(self._process):
                time.sleep(0.05)
            self._record_file.unlink(missing_ok=True)
