"""`zeus-lightning recur`: the command line."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusError
from zeus_lightning.recur import summary
from zeus_lightning.recur.driver import Driver, Mode
from zeus_lightning.recur.service import OwnService


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--recurrences",
    default=10,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of recurrences to run.",
)
@click.option(
    "--observe", is_flag=True, help="Run only control trials, with the default batch size."
)
@click.option("--compare", is_flag=True, help="Run control trials in every other recurrence.")
@click.option(
    "--folder",
    default=".zeus/recur",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the runs' output, and for the service's database unless --url is given.",
)
@click.option(
    "--url",
    envvar="ZEUS_SERVER_URL",
    show_envvar=True,
    help="URL of a running service; by default, start one.",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port of the service that this command starts.  [default: any free port]",
)
def recur(
    command: tuple[str, ...],
    *,
    recurrences: int,
    observe: bool,
    compare: bool,
    folder: Path,
    url: str | None,
    port: int,
) -> None:
    """Run a training COMMAND repeatedly, as a schedule would.

    A run whose batch size failed restarts at once. The next call continues with what was learned.
    Example: zeus-lightning recur -- python train.py
    """
    if observe and compare:
        raise click.UsageError("pass --observe or --compare, not both")
    if url and port:
        raise click.UsageError("pass --url or --port, not both")
    mode: Mode = "observe" if observe else "compare" if compare else "choose"
    console = Console()
    try:
        output = _new_folder(folder)
        with ExitStack() as stack:
            check = None
            if not url:
                database = f"sqlite:///{folder.absolute() / 'zeus.sqlite3'}"
                own = OwnService(database, output / "service.log", port)
                url, check = stack.enter_context(own).url, own.check
            client = BSOClient(url)
            client.check_access()
            until = " until this command ends" if check else ""
            _print(console, f"Output of the runs: {output}. Service{until}: {url}")
            driver = Driver(command, mode, output, client, console, check)
            try:
                driver.run(recurrences)
            finally:
                _sum_up(console, driver, client)
    except ZeusError as error:
        raise click.ClickException(error.message) from error
    except OSError as error:  # its message names the file
        raise click.ClickException(str(error)) from error
    if driver.signal is not None:
        sys.exit(128 + driver.signal)
    if driver.failed:
        last = driver.failed[-1]
        raise click.ClickException(
            f"{len(driver.failed)} of {recurrences} recurrences failed; the last one "
            f"{last.ending}: its output is in {driver.log(last)}"
        )


def _new_folder(folder: Path) -> Path:
    """Make the next of `run-0001`, `run-0002` and so on."""
    names = (re.fullmatch(r"run-(\d+)", each.name) for each in folder.glob("run-*"))
    last = max((int(name[1]) for name in names if name), default=0)
    new = folder / f"run-{last + 1:04}"
    new.mkdir(parents=True)
    return new


def _sum_up(console: Console, driver: Driver, client: BSOClient) -> None:
    """Print what the recurrences took, and what their job has saved."""
    table = summary.table(driver.tries)
    if table is None:
        return
    console.print(table)
    job_id = next(each.run.trial.job_id for each in driver.tries if each.run)
    try:
        lines = list(summary.saved(job_id, client.savings(job_id), driver.tries))
    except ZeusError:
        text = f"The service at {client.url} has no savings for job {job_id!r}"
        lines = [f"{text}: if the script uses another service, pass its URL as --url."]
    for line in lines:
        _print(console, line)


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
