"""The Dockerfile and the compose files, as far as they can be tried without a Docker engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from service_process import ServiceProcess
from zeus_service.config import VARIABLES

ROOT = Path(__file__).parents[2]
COMPOSE = ["compose.yaml", "compose.mysql.yaml"]


class ComposeLoader(yaml.SafeLoader):
    """YAML with the tag by which a compose file replaces what it would merge with."""


def _override(loader: ComposeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_sequence(node, deep=True)


ComposeLoader.add_constructor("!override", _override)


def compose(name: str) -> dict[str, Any]:
    return yaml.load((ROOT / name).read_text(), ComposeLoader)


def build_steps() -> Iterator[tuple[str, str]]:
    """The instructions of the Dockerfile's first stage."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    stages = 0
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            stages += instruction == "FROM"
            if stages == 1:
                yield instruction, rest


def healthcheck(port: int) -> list[str]:
    """The image's health check, for a service on another port."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("HEALTHCHECK"))
    command: list[str] = yaml.safe_load(line.partition(" CMD ")[2])
    return [word.replace(":8765", f":{port}") for word in command]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Dockerfile's first stage makes, the environment of the image."""
    folder = tmp_path_factory.mktemp("image")
    context, environment, programs = folder / "build", folder / "zeus", folder / "bin"
    context.mkdir()
    programs.mkdir()
    (programs / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line]
    for instruction, rest in build_steps():
        if instruction == "COPY":
            *sources, target = rest.split()
            for source in sources:
                assert source.split("/")[0] in sent, f".dockerignore keeps {source} back"
                _copy(ROOT / source, context / target)
        elif instruction == "RUN":
            subprocess.run(
                ["/bin/sh", "-c", rest.replace("/opt/zeus", str(environment))],
                cwd=context,
                env={**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)},
                check=True,
            )
    return environment


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
    else:
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)


def test_hadolint_finds_nothing() -> None:
    subprocess.run([Path(sys.executable).parent / "hadolint", ROOT / "Dockerfile"], check=True)


def test_what_the_dockerfile_installs_serves_and_is_healthy(image: Path, tmp_path: Path) -> None:
    installed = subprocess.run(
        [image / "bin" / "pip", "list", "--format=freeze"], check=True, capture_output=True
    ).stdout.decode()
    assert "zeus-service==" in installed
    assert "torch==" not in installed
    assert "lightning==" not in installed
    command = [str(image / "bin" / "python"), *healthcheck(0)[1:]]
    assert healthcheck(0)[0] == "python"
    with ServiceProcess(tmp_path, program=image / "bin" / "zeus-service") as service:
        command = [word.replace("127.0.0.1:0", f"127.0.0.1:{service.port}") for word in command]
        assert f":{service.port}/" in command[-1]
        assert subprocess.run(command, check=False).returncode == 0
    assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.parametrize("url", ["postgresql://host/database", "mysql://host/database"])
def test_the_image_has_the_drivers_and_the_revisions(image: Path, url: str) -> None:
    sql = subprocess.run(
        [image / "bin" / "flask", "--app", "zeus_service", "db", "upgrade", "--sql"],
        env={**os.environ, "ZEUS_BSO_DATABASE_URL": url},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "CREATE TABLE jobs" in sql


def test_every_version_in_the_image_is_the_pinned_one(image: Path) -> None:
    pinned = (ROOT / "constraints.txt").read_text().lower().split()
    installed = subprocess.run(
        [image / "bin" / "pip", "freeze"], check=True, capture_output=True, text=True
    ).stdout.lower()
    found = [line for line in installed.split() if "==" in line]
    assert len(found) > 20
    assert not set(found) - set(pinned)


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "service" / "requirements.lock").read_text().replace("\\\n", " ")
    locked = {
        line.split()[0]: line.count("--hash=sha256:")
        for line in text.splitlines()
        if line and line[0] != "#"
    }
    assert min(locked.values()) > 0
    pinned = re.sub("[-_.]+(?=.*==)", "-", (ROOT / "constraints.txt").read_text().lower()).split()
    assert {name for name in locked if name not in pinned} == {
        name for name in locked if name.startswith("setuptools==")
    }
    needed = re.findall(r"^[\w-]+", (ROOT / "service" / "requirements.txt").read_text(), re.M)
    assert {name.lower() for name in needed} <= {name.partition("==")[0] for name in locked}
    installs = [part for _, rest in build_steps() for part in rest.split("&&") if "install" in part]
    assert len(installs) == 2
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command
        assert "--no-deps" in command


def test_every_base_image_can_be_named_by_its_digest() -> None:
    """On the command line, or in `.env`."""
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall("^FROM (\\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    (default,) = re.findall("^ARG PYTHON_IMAGE=(.+)", text, re.MULTILINE)
    assert text.index("ARG PYTHON_IMAGE") < text.index("FROM")
    of_compose = f"${{ZEUS_PYTHON_IMAGE:-{default}}}"
    for service in compose("compose.yaml")["services"].values():
        if "build" in service:
            assert service["build"]["args"] == {"PYTHON_IMAGE": of_compose}
    for name in COMPOSE:
        assert compose(name)["services"]["database"]["image"].startswith("${ZEUS_DATABASE_IMAGE:-")


@pytest.mark.parametrize("name", COMPOSE)
def test_a_compose_file_is_valid(name: str) -> None:
    jsonschema.validate(compose(name), get_builtin_schema("vendor.compose-spec"))


def test_the_mysql_override_changes_only_services_that_exist() -> None:
    base, override = map(compose, COMPOSE)
    assert override["services"].keys() <= base["services"].keys()


@pytest.mark.parametrize("name", COMPOSE)
def test_a_service_is_given_only_secrets_and_volumes_that_exist(name: str) -> None:
    file = compose(name)
    secrets = compose("compose.yaml")["secrets"]
    for service in file["services"].values():
        assert set(service.get("secrets", [])) <= secrets.keys()
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= file[
            "volumes"
        ].keys()
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in secrets


def test_every_setting_stands_in_the_example_and_no_other() -> None:
    settings = set(VARIABLES)
    example = (ROOT / ".env.example").read_text()
    assert set(re.findall(r"^#(ZEUS_BSO_\w+)=", example, re.MULTILINE)) == settings
    used = "".join((ROOT / name).read_text() for name in [*COMPOSE, "Dockerfile"])
    assert set(re.findall(r"ZEUS_BSO_\w+", used)) <= settings
    of_compose = set(re.findall(r"\$\{(ZEUS_(?!BSO)\w+)", used))
    assert set(re.findall(r"^#(ZEUS_(?!BSO)\w+)=", example, re.MULTILINE)) == of_compose
