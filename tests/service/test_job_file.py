"""`zeus-service register`, and the YAML that `show --yaml` prints for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from service.conftest import application, on_sqlite
from service.jobs import HARDWARE
from zeus_service import optimizer
from zeus_service.cli import main

JOB = """\
# a nightly job
job_id: nightly
batch_sizes: [32, 64, 128]
default_batch_size: 64
target_metric: 0.97
monitor: val_acc
higher_is_better: true
max_epochs: 50
beta_knob: null
"""

Run = Callable[..., Result]
pytestmark = on_sqlite


@pytest.fixture
def run(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of zeus-service on a new database, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    env = {"ZEUS_BSO_DATABASE_URL": database_url}
    return lambda *arguments: CliRunner().invoke(main, arguments, env=env)


def register(run: Run, text: str) -> Result:
    Path("job.yaml").write_text(text)
    return run("register", "job.yaml")


def test_a_file_registers_a_job_and_the_same_values_again_say_so(run: Run) -> None:
    first, again = register(run, JOB), register(run, JOB)
    assert (first.exit_code, first.output) == (0, "job 'nightly' is registered\n")
    assert again.exit_code == 0
    assert again.output == ("job 'nightly' is already registered with these values\n")


def test_what_show_prints_registers_the_same_job_on_another_service(
    run: Run, tmp_path: Path
) -> None:
    register(run, JOB + "seed: 7\nlease_s: 60.5\nmab_prior_mean: 1.0e-7\n")
    printed = run("show", "nightly", "--yaml").output
    assert "beta_knob: null\n" in printed
    assert register(run, printed).output.endswith("already registered with these values\n")
    run("delete", "nightly", "--yes")
    assert register(run, printed).output == "job 'nightly' is registered\n"
    assert run("show", "nightly", "--yaml").output == printed


@pytest.mark.parametrize(
    ("changed", "to", "error"),
    [
        (
            "default_batch_size: 64",
            "default_batch_size: 100",
            "job.yaml:4: default_batch_size: 100 is not among batch_sizes [32, 64, 128]",
        ),
        ("[32, 64, 128]", "[32, x, 64]", "job.yaml:3: batch_sizes.1: must be an integer"),
        ("monitor: val_acc\n", "", "job.yaml: monitor: Field required"),
        ("higher_is_better: true\n", "", "job.yaml: higher_is_better: Field required"),
        ("monitor:", "monitro:", "job.yaml:6: monitro: is not a field of a job"),
        ("max_epochs:", "monitor:", "job.yaml:8: monitor: is given twice"),
        ("job_id: nightly", "job_id: a/b", "job.yaml:2: job_id: must be 1 to 255 letters"),
        ("max_epochs: 50", "max_epochs: 50\npolicy: best", "job.yaml:9: policy: choose one of"),
        ("64, 128]", "64, 128", "cannot read job.yaml: "),
        (JOB, "nightly", "job.yaml: not a YAML mapping; write one field per line"),
    ],
)
def test_an_error_names_its_file_line_and_field(
    run: Run, changed: str, to: str, error: str
) -> None:
    assert changed in JOB
    result = register(run, JOB.replace(changed, to))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {error}")
    assert "no jobs yet" in run("jobs").output


def test_every_invalid_field_is_listed(run: Run) -> None:
    result = register(run, JOB.replace("50", "0").replace("0.97", "high"))
    assert "job.yaml:5: target_metric: must be a number\n" in result.output
    assert "job.yaml:8: max_epochs: " in result.output


def test_other_values_replace_those_of_a_job_without_a_trial(run: Run) -> None:
    register(run, JOB + "seed: 7\n")
    corrected = register(run, JOB.replace("monitor: val_acc", "monitor: val_f1"))
    assert (corrected.exit_code, corrected.output) == (0, "job 'nightly' is registered\n")
    printed = run("show", "nightly", "--yaml").output
    assert "monitor: val_f1\n" in printed
    assert "seed: 7\n" in printed


def test_other_values_of_a_job_with_a_trial_are_listed_and_change_nothing(
    run: Run, database_url: str
) -> None:
    register(run, JOB)
    with application(database_url):
        optimizer.start_trial("nightly", hardware=HARDWARE)
    before = run("show", "nightly", "--yaml").output
    result = register(run, JOB.replace("64, 128", "64, 256").replace("50", "60"))
    assert result.exit_code == 1
    for text in (
        "job.yaml:3: batch_sizes: is [32, 64, 256], but is registered as [32, 64, 128]; use",
        "job.yaml:8: max_epochs: is 60, but is registered as 50; use another job_id\n",
    ):
        assert text in result.output
    assert run("show", "nightly", "--yaml").output == before
