"""`zeus-service`: run the service, and inspect its database.

What only some commands need, they import: `serve` and its workers must not keep it in memory.
Gunicorn's configuration must also set up the metrics of the workers before prometheus-client is
imported, which `optimizer` imports.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from flask import Flask
from sqlalchemy.exc import SQLAlchemyError

from zeus_service import __version__, create_app
from zeus_service.config import load_config
from zeus_service.db import migrate as database
from zeus_service.db.session import cause
from zeus_service.errors import OptimizerError, Unusable


class _Commands(click.Group):
    """Commands that end on an expected error with one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "simulate"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "simulate":
            return super().get_command(ctx, cmd_name)
        from zeus_service.simulation.cli import simulate

        return simulate

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (Unusable, OptimizerError) as error:
            raise click.ClickException(str(error)) from error
        except SQLAlchemyError as error:
            raise click.ClickException(f"the database cannot be used: {cause(error)}") from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="zeus-service")
def main() -> None:
    """The batch size service for recurring training jobs.

    Settings are ZEUS_BSO_* variables, such as ZEUS_BSO_TOKEN, in the environment or a .env file;
    .env.example lists them all.
    """


@main.command()
@click.option("--bind", default="127.0.0.1:8765", show_default=True, help="Address, as HOST:PORT.")
@click.option(
    "--workers",
    default=2,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Worker processes.",
)
def serve(bind: str, workers: int) -> None:
    """Run the service.

    Gunicorn's own options can be given in GUNICORN_CMD_ARGS.
    """
    from gunicorn.app import wsgiapp

    host, _, port = bind.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise Unusable(f"{bind!r} is not an address; use HOST:PORT, such as 127.0.0.1:8765")
    config = "--config=python:zeus_service.serving.gunicorn"
    sys.argv[1:] = [config, f"--bind={bind}", f"--workers={workers}"]  # gunicorn reads them there
    # Policies use small matrices, for which threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    wsgiapp.run(prog="zeus-service serve")


@main.command()
def jobs() -> None:
    """List the jobs."""
    from zeus_service import optimizer
    from zeus_service.api.messages import JobSummary

    found: list[JobSummary] = []
    with _database():
        while page := optimizer.list_jobs(after=found[-1].job_id if found else ""):
            found += [JobSummary.of(job, state) for job, state in page]
    if found:
        _print_table(
            ("job", "state", "best batch size", "trials", "last change"),
            [
                (job.job_id, job.state, job.best_batch_size, job.trials, changed)
                for job in found
                for changed in [f"{datetime.fromtimestamp(job.updated_at):%Y-%m-%d %H:%M}"]
            ],
        )
    else:
        click.echo("no jobs yet")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def register(file: Path) -> None:
    """Register a job from a YAML FILE with the fields of the HTTP API.

    Programs that use its id get these values; an argument with another value is an error.
    """
    from zeus_service import job_file

    with _database():
        job_id, new = job_file.register(file)
    state = "registered" if new else "already registered with these values"
    click.echo(f"job {job_id!r} is {state}")


@main.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--trials",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Number of latest trials to list.",
)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print only a job file for `register`.")
def show(job_id: str, trials: int, as_yaml: bool) -> None:
    """Show a job's batch sizes, next trial with its reason, savings, and latest trials."""
    from zeus_service import job_file, optimizer
    from zeus_service.api import savings_report, text
    from zeus_service.api.messages import Job, Trial
    from zeus_service.bandit.choice_reasons import baselines
    from zeus_service.units import energy

    with _database():
        job = Job.with_estimates(*optimizer.describe_job(job_id))
        latest = job.hardware[-1] if job.hardware else None
        if as_yaml:
            click.echo(job_file.write(job.spec), nl=False)
            return
        stored = optimizer.list_trials(job_id, after=max(0, job.trials - trials), limit=1000)
        listed = [Trial.of(job_id, trial) for trial in stored]
        saved = savings_report.job_savings(job_id)
    spec = job.spec
    target = f"({baselines(spec, job.completed_baselines)})"
    if job.target_metric is not None:
        target = f"{job.target_metric:g}"
    where = f" on {latest.num_devices} x {latest.device_model}" if latest else ""
    if len(job.hardware) > 1:
        where += f", the latest of {len(job.hardware)} kinds of hardware"
    meter = f", energy by {latest.meter}" if latest else ""
    _print(
        f"{spec.job_id}: {job.state}, best batch size {job.best_batch_size or '-'}; target: "
        f"{spec.monitor} {target}, in at most {spec.max_epochs} epochs{where}{meter}\n"
    )
    _print_table(text.BATCH_SIZES, text.batch_size_rows(latest, job.next_trial))
    if job.next_trial:
        size = f"next {job.next_trial.batch_size}: " if job.next_trial.batch_size else ""
        _print(f"\n{size}{job.next_trial.reason}")
    _print(f"\n{text.savings_summary(saved)}\n")
    _print_table(
        ("trial", "batch size", "why", "outcome", "epochs", "time", "energy", "cost"),
        [
            (
                *(trial.trial_number, trial.batch_size, trial.why),
                f"{trial.outcome or 'running'}{text.host_load(trial.host_load)}",
                *(trial.epoch, text.seconds(trial.time_s)),
                *(energy(trial.energy_j), energy(trial.cost)),
            )
            for trial in listed
        ],
    )


@main.command()
@click.argument("job_id", metavar="JOB")
@click.option("--force", is_flag=True, help="Delete even if trials are running.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(job_id: str, force: bool, yes: bool) -> None:
    """Delete a job with its trials, reports and power profiles.

    Its id can be reused at once. If the job has many trials, `prune` removes the remaining rows.
    """
    from zeus_service import maintenance

    with _database():
        maintenance.check_deletable(job_id, force=force)
        if not yes:
            question = f"Delete job {job_id!r} and everything it has learned?"
            click.confirm(question, abort=True, err=True)
        maintenance.delete_job(job_id, force=force)
    click.echo(f"deleted job {job_id!r}")


@main.command()
@click.option(
    "--older-than-days",
    required=True,
    type=click.FloatRange(0),
    help="Delete the reports of trials that ended more than this many days ago.",
)
def prune(older_than_days: float) -> None:
    """Delete old reports, and rows of deleted jobs.

    Trials and what was learned are kept. The service may be running.
    """
    from zeus_service import maintenance

    with _database():
        dropped = maintenance.prune(older_than_s=older_than_days * 86400)
    click.echo(f"deleted reports: {dropped.reports}; rows of deleted jobs: {dropped.rows}")


@main.command()
@click.argument("job_id", metavar="JOB")
def rebuild(job_id: str) -> None:
    """Replay a job's trials, and store the resulting state and savings if they differ."""
    from zeus_service import maintenance

    with _database():
        same = maintenance.rebuild(job_id)
    click.echo(
        "the stored state and savings match the replay"
        if same
        else "replaced the stored state and savings with the replayed ones"
    )


@main.group()
def db() -> None:
    """Show or change the database's revision.

    `serve` migrates SQLite by itself. Before you run `db upgrade` on PostgreSQL, MySQL or MariaDB,
    back up the database and stop the service.
    """


@db.command()
def upgrade() -> None:
    """Migrate to the revision that this version needs."""
    app = create_app(load_config())
    database.upgrade(app)
    _show_revision(app)


@db.command()
def current() -> None:
    """Show the database's revision and the one this version needs."""
    _show_revision(create_app(load_config()))


@contextmanager
def _database() -> Iterator[None]:
    """The application's context on a database that exists and has the right revision."""
    app = create_app(load_config())
    logging.basicConfig()
    with app.app_context():
        database.check_revision()
        yield


def _show_revision(app: Flask) -> None:
    with app.app_context():
        found, needed = database.current_revision(), database.known_revisions()[0]
        click.echo(f"database revision {found or 'none'}; this version needs {needed}")


def _print_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, as wide as it needs to be; the row of the best batch size is bold."""
    lines = [[*names], *(["-" if value is None else str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(map(str.ljust, line, widths)).rstrip()
        _print(text, bold=line[-1].startswith("best"), underline=line is lines[0])


def _print(text: str, **style: Any) -> None:
    """Print a line; control characters in it, which a terminal would obey, are escaped."""
    shown = (char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    click.secho("".join(shown), **style)
