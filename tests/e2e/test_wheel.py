"""What is built is what works: the wheel in clean virtual environments."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from service_process import ServiceProcess

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command to its end; its output is shown where it fails."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git knows, so that no leftover gets in."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--outdir", dist, source)
    (path,) = dist.glob("*.whl")
    return path


def environment(folder: Path, *requirements: str | Path) -> Path:
    """A clean virtual environment; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    constraints = ROOT / "constraints.txt"
    run(programs / "pip", "install", "--quiet", "--constraint", constraints, *requirements)
    return programs


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for top, prefix in ((ROOT, "zeus_lightning"), (ROOT / "service", "zeus_service")):
        for path in (top / prefix).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(path.relative_to(top)) in packed
    assert not [name for name in packed if name.startswith(("tests/", "service/"))]


def test_with_the_extra_service_both_packages_import_and_the_service_answers(
    wheel: Path, tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", f"{wheel}[service]")
    run(programs / "python", "-c", "import zeus_lightning, zeus_service", cwd=tmp_path)
    with ServiceProcess(tmp_path, program=programs / "zeus-service"):
        pass  # it has answered /healthz
