"""A policy of one's own: the example, as an installed distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from service.api.wires import Api, report
from service.jobs import START, spec_json
from service.test_cli import one_error
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S
from zeus_service.bandit import registry
from zeus_service.errors import Unusable

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_policy"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with what `pip install` of the example writes."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site-packages"
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    shutil.copy(EXAMPLE / "round_robin.py", folder)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))
    return folder


def test_the_service_chooses_by_it(tmp_path: Path, installed: Path) -> None:
    program = BIN / "zeus-service"  # whose paths are those of the variable
    with ServiceProcess(tmp_path, program=program, PYTHONPATH=str(installed)) as service:
        api = Api(service.url)
        job = spec_json(batch_sizes=[16, 32], policy="round_robin")
        assert api("POST", "/jobs", job).status_code == 201
        taken = []
        for number in range(1, 7):
            trial = api("POST", "/jobs/job/trials", START).json()
            taken.append((trial["batch_size"], trial["why"]))
            body = report(1, energy_j=10.0 * trial["batch_size"], time_s=1.0, metric=1.0)
            assert api("POST", f"/jobs/job/trials/{number}/reports", body).json()["outcome"]
        shown = api("GET", "/jobs/job").json()
    assert taken == [(16, "explore"), (32, "explore")] * 2 + [(16, "exploit")] * 2
    assert shown["best_batch_size"] == 16


FOLDER = Path(__file__).parent
CONTRACT = [FOLDER / "test_contract.py", FOLDER / "test_policy_on_any_processor.py"]


def test_it_keeps_the_contract(installed: Path) -> None:
    """As the documentation says: an installed policy is among those that the suite runs on."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "round_robin"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(
        [*command, *map(str, CONTRACT)],
        cwd=EXAMPLE.parents[1],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_one_that_cannot_be_loaded_is_named(tmp_path: Path, installed: Path) -> None:
    (installed / "round_robin.py").write_text("raise OSError('no file')")
    result = subprocess.run(
        [sys.executable, "-m", "zeus_service", "serve"],
        env={
            **os.environ,
            "PYTHONPATH": str(installed),
            "ZEUS_BSO_DATABASE_URL": f"sqlite:///{tmp_path / 'x.sqlite3'}",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    error = one_error(result)
    assert "OSError: no file" in error
    assert "policy 'round_robin' (round_robin:policy of round-robin-policy)" in error


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("class policy: name = 'round_robin'", "lacks attributes"),
        ("from zeus_service.bandit.zeus import ZeusPolicy as policy", "is 'zeus'"),
    ],
)
def test_one_that_is_none_is_named(
    installed: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    (installed / "round_robin.py").write_text(program)
    monkeypatch.syspath_prepend(installed)
    monkeypatch.delitem(sys.modules, "round_robin", raising=False)
    with pytest.raises(Unusable, match=f"policy 'round_robin' .*{reason}"):
        registry._all()
    del sys.modules["round_robin"]
