"""`zeus-lightning recur`: the command line."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import click
from rich.console import Console

from zeus_lightning.errors import ZeusError
from zeus_lightning.recur import summary
from zeus_lightning.recur.driver import Display, Driver
from zeus_lightning.recur.ledger import Ledger, only_driver
from zeus_lightning.recur.progress import Mode, Plan
from zeus_lightning.recur.service import OwnService, Service

_LAST_LINES = 20
_LAST_BYTES = 10_000


class _Duration(click.ParamType[float]):
    """A duration such as 24h, in seconds."""

    name = "duration"
    _seconds: ClassVar = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        matched = re.fullmatch(r"(\d{1,6})([smhdw])", str(value))
        if matched is None or int(matched[1]) == 0:
            self.fail(f"{value!r} is not a duration; write 24h, 30m, 90s or 7d", param, ctx)
        return int(matched[1]) * self._seconds[matched[2]]


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--recurrences", default=10, show_default=True, type=click.IntRange(1), metavar="N")
@click.option(
    "--retries",
    default=20,
    show_default=True,
    type=click.IntRange(0),
    help="How often a recurrence is tried again if its batch size fails.",
)
@click.option(
    "--parallel",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How many recurrences may run at once.",
)
@click.option(
    "--every", "interval_s", type=_Duration(), help="Begin a recurrence every 24h, for example."
)
@click.option("--stop-on-error", is_flag=True, help="Stop at the first recurrence that fails.")
@click.option("--timeout", "timeout_s", type=_Duration(), help="End a run that takes longer.")
@click.option("--observe", is_flag=True, help="Run only control trials: choose nothing.")
@click.option("--compare", is_flag=True, help="Run control trials in every other recurrence.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    help="Derive a seed for each run from this one, as PL_GLOBAL_SEED.",
)
@click.option(
    "--folder",
    default=".zeus/recur",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="For the runs' output, and what --resume needs.",
)
@click.option("--resume", is_flag=True, help="Continue the last run in the folder.")
@click.option("--url", envvar="ZEUS_SERVER_URL", show_envvar=True, help="The service.")
@click.option(
    "--service",
    "database_url",
    metavar="sqlite:///FILE",
    help="Start a service on this database; without a URL, on one in the folder.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="For the service that it starts.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write tries and sums to this file.",
)
@click.pass_context
def recur(
    context: click.Context,
    command: tuple[str, ...],
    *,
    recurrences: int,
    retries: int,
    parallel: int,
    interval_s: float | None,
    stop_on_error: bool,
    timeout_s: float | None,
    observe: bool,
    compare: bool,
    seed: int | None,
    folder: Path,
    resume: bool,
    url: str | None,
    database_url: str | None,
    port: int | None,
    json_path: Path | None,
) -> None:
    """Run a training COMMAND again and again, as a schedule would.

    If a run's batch size fails, its recurrence is tried again at once. After any other error the
    next recurrence begins; three errors in a row with the default batch size stop the driver.
    Ctrl-C ends the runs in order; the same command with --resume goes on.
    For example: zeus-lightning recur --recurrences 30 -- python train.py --max-epochs 50
    """
    passes_url = context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE
    if observe and compare:
        raise click.UsageError("pass --observe or --compare, not both")
    if passes_url and (database_url is not None or port is not None):
        raise click.UsageError("pass --url, or --service and --port, not both")
    if json_path is not None and not json_path.parent.is_dir():
        parent = json_path.parent
        if not folder.resolve().is_relative_to(parent.resolve()):  # it will be made
            raise click.UsageError(f"{json_path} cannot be written: make the folder {parent} first")
    if compare and find_spec("scipy") is None:
        raise click.UsageError("--compare needs scipy: pip install 'zeus-lightning[analysis]'")
    mode: Mode = "observe" if observe else "compare" if compare else "choose"
    plan = Plan(
        recurrences=recurrences,
        retries=retries,
        parallel=parallel,
        mode=mode,
        seed=seed,
        stop_on_error=stop_on_error,
    )
    console = Console()
    try:
        with ExitStack() as stack:
            stack.enter_context(only_driver(folder))
            ledger = Ledger(folder, resume=resume)
            if url and database_url is None and port is None:
                service = Service(url)
            else:
                own = database_url or f"sqlite:///{folder.absolute() / 'zeus.sqlite3'}"
                service = OwnService(own, folder / "service.log", port or 0)
            stack.enter_context(service)
            console.print(
                f"The runs' output is in {ledger.folder}, the service at {service.url}.",
                highlight=False,
                soft_wrap=True,
            )
            display = stack.enter_context(Display(console, recurrences))
            driver = Driver(
                plan=plan,
                command=command,
                interval_s=interval_s,
                timeout_s=timeout_s,
                ledger=ledger,
                service=service,
                display=display,
            )
            driver.run()
        tries = summary.rows(driver.progress)
        found = summary.recurrences(tries)
        if any(each.unmeasured < each.tries for each in found):
            console.print(summary.table(found))
        for line in summary.comparison(found) if compare else ():
            console.print(line, highlight=False, soft_wrap=True)
        if json_path is not None:
            summary.write_json(tries, json_path)
    except ZeusError as error:
        raise click.ClickException(error.message) from error
    except OSError as error:  # its message names the file
        raise click.ClickException(str(error)) from error
    if driver.signal is not None:
        click.echo("Stopped; the same command with --resume goes on.", err=True)
        sys.exit(128 + driver.signal)
    if driver.progress.stopped_by is not None:
        log = driver.log(driver.progress.stopped_by)
        lines = _last_lines(log)
        raise click.ClickException(f"{driver.progress.stop}. The last lines of {log}:\n{lines}")
    if failed := sorted(driver.progress.failed):
        last = next(each for each in reversed(driver.progress.tries) if each.recurrence in failed)
        raise click.ClickException(
            f"{len(failed)} of {recurrences} recurrences failed; the last one's output is in "
            f"{driver.log(last)}"
        )


def _last_lines(log: Path) -> str:
    """The end of a run's output; a line may be megabytes long, and the run may delete the file."""
    try:
        with log.open("rb") as file:
            file.seek(-min(_LAST_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except OSError as error:
        return str(error)
    return "\n".join(text.splitlines()[-_LAST_LINES:])
