"""`zeus-lightning exec`: turn a failed batch size into an exit status that a scheduler knows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import click

from zeus_lightning.client import BSOClient
from zeus_lightning.environment import OUTCOME_FILE
from zeus_lightning.errors import ZeusError
from zeus_lightning.messages import FAILED, Outcome
from zeus_lightning.recur.ending import EXIT_TRY_AGAIN
from zeus_lightning.run.record import TrialRecord

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_TIMEOUT_S = 10.0


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(command: tuple[str, ...]) -> None:
    """Run a training COMMAND; exit with 75 if its batch size failed.

    Otherwise exit with the command's own status, or 128 + N if signal N ended it.
    For example: zeus-lightning exec -- torchrun train.py
    """
    named = os.environ.get(OUTCOME_FILE)
    with tempfile.TemporaryDirectory(prefix="zeus-") as private:
        path = Path(named or f"{private}/outcome.json").absolute()
        TrialRecord.remove(path)
        if TrialRecord.read(path) is not None:
            raise click.ClickException(
                f"cannot remove {path}, an earlier run's outcome file; remove it, or set "
                f"${OUTCOME_FILE} to another path"
            )
        try:
            status = _run(command, {**os.environ, OUTCOME_FILE: str(path)})
        except OSError as error:
            click.echo(f"Error: {command[0]} cannot be run: {error}", err=True)
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)  # as shells do
        run = TrialRecord.read(path)
    outcome = None if run is None else run.outcome
    if run is not None and status != 0 and outcome not in ("converged", "completed", *FAILED):
        outcome = _ask_service(run)
    if run is not None and run.trial.is_chosen and outcome in FAILED:
        sys.exit(EXIT_TRY_AGAIN)
    sys.exit(status if status >= 0 else 128 - status)


def _run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end, and return its exit status; negative if a signal ended it.

    Signals are forwarded to the command's own process alone: a launcher passes them on in its way.
    A terminal itself sends Ctrl-C to both.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None = None) -> None:
        if process is None:
            early.append(number)
        elif number not in _FROM_TERMINAL or not _is_in_foreground():
            process.send_signal(number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # such as SIGHUP under `nohup`
            signal.signal(number, forward)
    process = subprocess.Popen(command, env=env)
    for each in early:
        forward(each)
    return process.wait()


def _is_in_foreground() -> bool:
    """Whether this process is in the foreground of its terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # it has none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _ask_service(run: TrialRecord) -> Outcome | None:
    """How the service says that a trial ended.

    The process that writes the outcome file may have been killed, or a rank on another node may
    have run out of memory.
    """
    url = os.environ.get("ZEUS_SERVER_URL")
    if not url:
        return None
    try:
        client = BSOClient(url, timeout_s=_TIMEOUT_S)
        status = client.trial_status(run.trial.job_id, run.trial.trial_number)
    except ZeusError as error:
        click.echo(
            "zeus-lightning exec: cannot tell whether the batch size failed, so the command's exit "
            f"status is kept: {error}",
            err=True,
        )
        return None
    same = status is not None and status.generation == run.trial.generation
    return status.outcome if status is not None and same else None
