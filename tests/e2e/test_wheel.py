"""What is built is what works: the wheel in clean virtual environments."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by package, built from a copy of what git knows, so that no leftover gets in."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    for folder in (source, source / "service"):
        run(sys.executable, "-m", "build", "--wheel", "--outdir", dist, folder)
    return {path.name.partition("-")[0]: path for path in dist.glob("*.whl")}


def environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment of a wheel and what it requires; returns its folder of programs.

    What it requires is linked from this environment, as pip has installed it: to download torch and
    unpack it again would take longer than all other tests of a wheel together.
    """
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", wheel)
    (info,) = packages.glob("*.dist-info")
    for name in sorted(required_by(metadata.Distribution.at(info))):
        distribution = metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    return folder / "bin"


def required_by(distribution: metadata.Distribution) -> set[str]:
    """The names of all distributions that one needs, directly and indirectly, without extras."""
    found: set[str] = set()
    left = [(distribution, frozenset[str]())]
    while left:
        distribution, extras = left.pop()
        for line in distribution.requires or ():
            required = Requirement(line)
            marker = required.marker
            wanted = marker is None or any(
                marker.evaluate({"extra": extra}) for extra in (extras or {""})
            )
            if wanted and required.name not in found:
                found.add(required.name)
                left.append((metadata.distribution(required.name), frozenset(required.extras)))
    return found


def is_importable(programs: Path, name: str, folder: Path) -> bool:
    """Whether a module is there for an environment's Python."""
    found = f"import importlib.util; print(importlib.util.find_spec({name!r}) is not None)"
    return run(programs / "python", "-c", found, cwd=folder) == "True\n"


@pytest.mark.parametrize(
    ("package", "top"), [("zeus_lightning", ROOT), ("zeus_service", ROOT / "service")]
)
def test_a_wheel_holds_every_module_of_its_package_the_license_and_nothing_else(
    wheels: dict[str, Path], package: str, top: Path
) -> None:
    packed = set(zipfile.ZipFile(wheels[package]).namelist())
    for path in (top / package).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(top)) in packed
    assert {name.partition("/")[0].partition("-")[0] for name in packed} == {package}
    assert any(name.endswith("/licenses/LICENSE") for name in packed)


def test_both_packages_have_the_same_version(wheels: dict[str, Path]) -> None:
    assert len({path.name.split("-")[1] for path in wheels.values()}) == 1


def test_the_callbacks_import_without_the_service(wheels: dict[str, Path], tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", wheels["zeus_lightning"])
    run(programs / "python", "-c", "from zeus_lightning import *", cwd=tmp_path)
    run(programs / "zeus-lightning", "--version", cwd=tmp_path)
    assert not is_importable(programs, "flask", tmp_path)


def test_the_service_answers_without_torch(wheels: dict[str, Path], tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", wheels["zeus_service"])
    assert not is_importable(programs, "torch", tmp_path)
    with ServiceProcess(tmp_path, program=programs / "zeus-service"):
        pass  # it has answered /healthz


def test_every_pinned_version_installs_on_the_oldest_python_that_is_promised() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    oldest = setup["options"]["python_requires"].removeprefix(">=")
    needed = {each.name: each.metadata.get("Requires-Python") for each in metadata.distributions()}
    assert len(needed) > 100
    assert not {
        name: versions
        for name, versions in needed.items()
        if versions and f"{oldest}.0" not in SpecifierSet(versions)
    }
