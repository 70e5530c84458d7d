"""`zeus-service`: run the service, and look into its database."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import ParamSpec, TypeVar

import click
from flask import Flask
from rich import box
from rich.console import Console
from rich.table import Column, Table
from sqlalchemy.exc import SQLAlchemyError

from zeus_service import __version__, create_app, database, optimizer
from zeus_service.config import UnusableConfig, load_config
from zeus_service.connections import cause
from zeus_service.database import (
    UnusableDatabase,
    check_exists,
    check_revision,
    migrate_sqlite,
)
from zeus_service.errors import OptimizerError
from zeus_service.messages import Job, JobSummary, Trial
from zeus_service.server import Server, UnusableAddress, check_bind, make_ready
from zeus_service.simulation.cli import simulate

P = ParamSpec("P")
R = TypeVar("R")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="zeus-service")
def main() -> None:
    """The batch size service for recurring training jobs.

    Configuration comes from the variables ZEUS_BSO_*, in the environment or in a .env file:
    DATABASE_URL, TOKEN, READ_TOKEN (or the names of files that hold them: DATABASE_URL_FILE and so
    on), INSECURE, ZEUS_WIRE, LOG_LEVEL, LOG_FORMAT and ECHO_SQL.
    """


def one_message(command: Callable[P, R]) -> Callable[P, R]:
    """End a command on an expected error with its message alone."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (UnusableConfig, UnusableAddress, UnusableDatabase, OptimizerError) as error:
            raise click.ClickException(str(error)) from error
        except SQLAlchemyError as error:
            raise click.ClickException(f"the database cannot be used: {cause(error)}") from error

    return wrapper


@main.command()
@click.option("--bind", default="127.0.0.1:8765", show_default=True, help="HOST:PORT.")
@click.option(
    "--workers", default=2, show_default=True, type=click.IntRange(1, 256), help="Processes."
)
@one_message
def serve(bind: str, workers: int) -> None:
    """Run the service."""
    config = load_config()
    check_bind(bind, config)
    make_ready(config)
    click.echo(
        f"zeus-service {__version__} on http://{bind}, data in {config.shown_database}", err=True
    )
    # gunicorn reads the command line of the process it runs in; this one is click's.
    sys.argv = sys.argv[:1]
    Server(config, bind=bind, workers=workers).run()


@main.command()
@one_message
def jobs() -> None:
    """List the jobs."""
    names = ("stage", "best batch size", "trials", "last change")
    columns = (Column("job", overflow="fold"), *(Column(name, no_wrap=True) for name in names))
    table = Table(*columns, box=box.SIMPLE_HEAD)
    with _database():
        for job in _all_jobs():
            table.add_row(
                job.job_id,
                job.stage,
                _or_dash(job.best_batch_size),
                str(job.trials),
                f"{datetime.fromtimestamp(job.updated_at):%Y-%m-%d %H:%M}",
            )
    Console().print(table if table.row_count else "no jobs yet")


@main.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--trials",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="How many of the latest to list.",
)
@one_message
def show(job_id: str, trials: int) -> None:
    """Show a job's batch sizes and its latest trials."""
    with _database():
        job = optimizer.get_job(job_id)
        latest = optimizer.list_trials(job_id, after=max(0, job.trials - trials), limit=1000)
    console = Console()
    spec = job.spec
    console.print(
        f"{spec.job_id}: {job.stage}, best batch size {_or_dash(job.best_batch_size)}; "
        f"{spec.monitor} to {spec.target_metric:g} in {spec.max_epochs} epochs on "
        f"{spec.num_devices} x {spec.device_model}, energy by {spec.meter}",
        highlight=False,
        markup=False,
    )
    console.print(_arms_table(job))
    console.print(_trials_table(latest.trials))


@main.command()
@click.argument("job_id", metavar="JOB")
@click.option("--force", is_flag=True, help="Also when it has running trials.")
@one_message
def delete(job_id: str, force: bool) -> None:
    """Delete a job with all that is known about it."""
    with _database():
        optimizer.delete_job(job_id, force=force)
    click.echo(f"job {job_id!r} is deleted")


@main.command()
@click.argument("job_id", metavar="JOB")
@one_message
def rebuild(job_id: str) -> None:
    """Make a job's state anew from its history."""
    with _database():
        same = optimizer.rebuild(job_id)
    click.echo("the stored state was right" if same else "the stored state differed: replaced")


@main.group()
def db() -> None:
    """Look at the database's revision, and change it.

    SQLite is migrated by `serve`. A server's database is not: back it up, stop the service, run
    `zeus-service db upgrade`, and start the new version.
    """


@db.command()
@click.argument("revision", default="head")
@one_message
def upgrade(revision: str) -> None:
    """Migrate up to REVISION, by default the one this version works with."""
    config = load_config()
    app = create_app(config)
    if config.sqlite_path and revision == "head":
        migrate_sqlite(app, config.sqlite_path)
    else:
        database.upgrade(app, revision)
    _show_revision(app)


@db.command(context_settings={"ignore_unknown_options": True})  # -1 is a revision
@click.argument("revision")
@one_message
def downgrade(revision: str) -> None:
    """Migrate down to REVISION, or by one with -1; `base` drops every table with all its rows."""
    config = load_config()
    check_exists(config)
    app = create_app(config)
    database.downgrade(app, revision)
    _show_revision(app)


@db.command()
@one_message
def current() -> None:
    """Show the database's revision and the one this version works with."""
    config = load_config()
    check_exists(config)
    _show_revision(create_app(config))


@db.command()
@click.argument("revisions", metavar="[FROM:]TO", default="head")
@one_message
def sql(revisions: str) -> None:
    """Print the SQL of an upgrade, without a connection.

    It is in the dialect of ZEUS_BSO_DATABASE_URL, from an empty database unless FROM is given.
    """
    database.upgrade(create_app(load_config()), revisions, sql=sys.stdout)


main.add_command(simulate)


@contextmanager
def _database() -> Iterator[None]:
    """The database, for looking into it: it must be there, and is not migrated."""
    config = load_config()
    logging.basicConfig()
    with create_app(config).app_context():
        check_revision(config)
        yield


def _show_revision(app: Flask) -> None:
    with app.app_context():
        click.echo(f"revision {database.current_revision()}, head {database.head_revision()}")


def _all_jobs() -> Iterator[JobSummary]:
    after = ""
    while page := optimizer.list_jobs(after=after).jobs:
        yield from page
        after = page[-1].job_id


def _arms_table(job: Job) -> Table:
    names = ("batch size", "trials", "mean cost (J)", "uncertainty (J)", "status")
    table = Table(*names, box=box.SIMPLE_HEAD)
    for arm in job.arms:
        best = arm.batch_size == job.best_batch_size
        table.add_row(
            str(arm.batch_size),
            str(arm.pulls),
            _joules(arm.mean),
            _joules(arm.spread),
            "best" if best else arm.status,
            style="bold" if best else None,
        )
    return table


def _trials_table(trials: list[Trial]) -> Table:
    names = ("trial", "batch size", "why", "outcome", "epochs", "s", "J", "cost")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=box.SIMPLE_HEAD)
    for trial in trials:
        table.add_row(
            str(trial.trial_number),
            str(trial.batch_size),
            trial.why,
            trial.outcome or "running",
            str(trial.epoch),
            f"{trial.time_s:.1f}",
            f"{trial.energy_j:.1f}",
            f"{trial.cost:.1f}",
        )
    return table


def _joules(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
