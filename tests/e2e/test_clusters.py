"""What runs the service and the training on clusters, as far as it can be tried without one."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubeflow_trainer_api.models as trainer_models
import kubernetes.client
import kubernetes_validate
import pytest
import yaml
from kubeflow.training import models as operator_models
from records import record
from service_process import BIN
from waiting import LIMIT_S
from zeus_service.config import load_config
from zeus_service.version import __version__

from zeus_lightning.recur.ending import EXIT_TRY_AGAIN

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("overlays/sqlite", "overlays/postgres", "overlays/postgres/migrate")
FOR_KUBEFLOW = ("cronjob.yaml", "pytorchjob.yaml", "trainjob.yaml")
SECRETS = {"zeus-service": {"token", "read_token", "database_password"}, "zeus-token": {"token"}}
"""The Secrets that the READMEs create."""


@cache
def built(overlay: str) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes."""
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / overlay)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def for_kubeflow(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubeflow" / name).read_text()))


EVERYTHING = [
    *((overlay, built) for overlay in (*OVERLAYS, "servicemonitor")),
    *((name, for_kubeflow) for name in FOR_KUBEFLOW),
]
every_manifest = pytest.mark.parametrize(
    ("name", "read"), EVERYTHING, ids=[n for n, _ in EVERYTHING]
)


def nested(value: Any, key: str) -> Iterator[Any]:
    """The values of a key, wherever it is in a document."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for each in value.values():
            yield from nested(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from nested(each, key)


def containers(documents: Any) -> list[dict[str, Any]]:
    return [each for found in nested(list(documents), "containers") for each in found]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_takes_every_document_of_the_service(overlay: str) -> None:
    for document in built(overlay):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        in_namespace = document["metadata"].get("namespace") == "zeus"
        assert in_namespace or document["kind"] == "Namespace"


def test_kubernetes_takes_the_cron_job() -> None:
    (document,) = for_kubeflow("cronjob.yaml")
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_training_operator_takes_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in vars(operator_models).items():
        if name.startswith("KubeflowOrgV1"):  # where the client looks for models by their names
            monkeypatch.setattr(kubernetes.client.models, name, model, raising=False)
    client = kubernetes.client.ApiClient()
    jobs = for_kubeflow("pytorchjob.yaml")
    for job in jobs:
        answer = SimpleNamespace(data=json.dumps(job))
        known = client.deserialize(answer, f"KubeflowOrgV1{job['kind']}")
        assert client.sanitize_for_serialization(known) == job  # a field it does not know is lost
    assert [list(job["spec"]["pytorchReplicaSpecs"]) for job in jobs] == [
        ["Master"],
        ["Master", "Worker"],
    ]


def test_the_trainer_takes_its_job_and_runtime() -> None:
    for document in for_kubeflow("trainjob.yaml"):
        model = getattr(trainer_models, f"TrainerV1alpha1{document['kind']}")
        assert model.from_dict(document).to_dict() == document


@every_manifest
def test_images_are_those_that_the_dockerfiles_make(name: str, read: Any) -> None:
    for container in containers(read(name)):
        image, _, tag = container["image"].partition(":")
        assert image == ("zeus-training" if read is for_kubeflow else "zeus-service")
        assert tag == __version__
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "--tag zeus-service" in dockerfile
    assert f"--tag zeus-training:{__version__}" in (ROOT / "examples" / "Dockerfile").read_text()


@every_manifest
def test_every_variable_is_one_that_is_read(name: str, read: Any) -> None:
    documented = set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    for_runs = {"ZEUS_SERVER_URL", "ZEUS_JOB_ID", "ZEUS_BSO_TOKEN"}
    documents = list(read(name))
    listed = {each["name"] for env in nested(documents, "env") for each in env}
    listed |= {key for d in documents if d["kind"] == "ConfigMap" for key in d["data"]}
    assert listed <= (for_runs if read is for_kubeflow else documented)


@every_manifest
def test_every_secret_is_one_that_the_readme_creates(name: str, read: Any) -> None:
    documents = list(read(name))
    for reference in (*nested(documents, "secretKeyRef"), *nested(documents, "credentials")):
        assert reference["key"] in SECRETS[reference["name"]]
    for volume in nested(documents, "secret"):
        assert volume["secretName"] in SECRETS
    for document in documents:
        for text in re.findall(r"/run/secrets/zeus/(\w+)", json.dumps(document)):
            assert text in SECRETS["zeus-service"]
    readme = "kubernetes" if read is built else "kubeflow"
    text = (DEPLOY / readme / "README.md").read_text()
    secret = "zeus-service" if read is built else "zeus-token"
    assert f"create secret generic {secret}" in text
    assert all(f"--from-literal={key}=" in text for key in SECRETS[secret])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_probes_user_and_folders_are_those_of_the_image(overlay: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (port,) = re.findall(r"^EXPOSE (\d+)", dockerfile, re.MULTILINE)
    (user,) = re.findall(r"^USER (\d+)", dockerfile, re.MULTILINE)
    (home,) = re.findall(r"^VOLUME (\S+)", dockerfile, re.MULTILINE)
    documents = built(overlay)
    assert set(nested(documents, "containerPort")) <= {int(port)}
    assert set(nested(documents, "runAsUser")) == {int(user)}
    services = [d for d in documents if d["kind"] == "Service"]
    assert [p["port"] for d in services for p in d["spec"]["ports"]] == [int(port)] * len(services)
    probed = {each["path"] for each in nested(documents, "httpGet")}
    assert probed <= {"/healthz", "/readyz"}
    mounted = {each["mountPath"] for mounts in nested(documents, "volumeMounts") for each in mounts}
    assert mounted <= {"/tmp", "/run/secrets/zeus", home}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_service_understands_its_settings(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = built(overlay)
    (settings,) = [d["data"] for d in documents if d["kind"] == "ConfigMap"]
    own = {each["name"]: each["value"] for env in nested(documents, "env") for each in env}
    for secret in SECRETS["zeus-service"]:
        (tmp_path / secret).write_text(f"{secret}-of-at-least-16-characters")
    monkeypatch.chdir(tmp_path)
    for name, value in (settings | own).items():
        monkeypatch.setenv(name, value.replace("/run/secrets/zeus", str(tmp_path)))
    config = load_config()
    assert config.log_format == "json"
    backend = "sqlite" if overlay == "overlays/sqlite" else "postgresql"
    assert config.database_url.startswith(backend)


def test_the_service_is_found_at_the_url_that_the_training_uses() -> None:
    urls = {
        each["value"]
        for name in FOR_KUBEFLOW
        for env in nested(for_kubeflow(name), "env")
        for each in env
        if each["name"] == "ZEUS_SERVER_URL"
    }
    (service,) = [d for d in built("overlays/postgres") if d["kind"] == "Service"]
    where, (port,) = service["metadata"], service["spec"]["ports"]
    assert urls == {f"http://{where['name']}.{where['namespace']}.svc:{port['port']}"}


def test_only_the_status_of_a_failed_batch_size_launches_a_pod_again() -> None:
    documents = [*for_kubeflow("cronjob.yaml"), *for_kubeflow("trainjob.yaml")]
    rules = [rule for found in nested(documents, "podFailurePolicy") for rule in found["rules"]]
    codes = [rule for rule in rules if "onExitCodes" in rule]
    assert len(codes) == 2
    for rule in codes:
        assert rule["action"] == "FailJob"
        assert rule["onExitCodes"]["operator"] == "NotIn"
        assert rule["onExitCodes"]["values"] == [EXIT_TRY_AGAIN]
        names = {each["name"] for each in containers(documents)}
        assert rule["onExitCodes"]["containerName"] in names


@pytest.mark.parametrize("name", FOR_KUBEFLOW)
def test_the_script_takes_the_arguments_that_the_containers_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parsed(Exception):
        pass

    def parse(parser: argparse.ArgumentParser) -> None:
        raise Parsed(parser.parse_known_args())

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    documents = for_kubeflow(name)
    commands = [each["args"] for each in containers(documents) if "args" in each]
    commands += list(nested(documents, "command"))
    assert commands
    for command in commands:
        wrapped = command[:3] == ["zeus-lightning", "exec", "--"]
        assert wrapped == (name != "pytorchjob.yaml")  # which cannot tell statuses apart
        program, script, *arguments = command[3:] if wrapped else command
        assert program in ("python", "torchrun")
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(Parsed) as parsed:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        options, unknown = parsed.value.args[0]
        assert (options.data, unknown) == (Path("/data"), [])


PROGRAMS = {
    "srun": 'echo "$@" > "$SEEN/srun"; echo "$OUTCOME" > "$ZEUS_OUTCOME_FILE"; exit "$STATUS"',
    "scontrol": 'echo "$@" > "$SEEN/scontrol"',
}
"""Of Slurm, as far as the script uses it."""


@pytest.mark.parametrize(
    ("outcome", "restarts", "status"),
    [("converged", 0, 0), ("not_converged", 3, 75), ("not_converged", 20, 75), ("errored", 0, 1)],
)
def test_slurm_requeues_a_job_if_its_batch_size_failed(
    tmp_path: Path, outcome: str, restarts: int, status: int
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}",
        "SEEN": str(seen),
        "STATUS": str(int(outcome != "converged")),
        "OUTCOME": json.dumps(record(outcome=outcome).to_json()),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NAME": "mnist",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    script = DEPLOY / "slurm" / "recurring.sbatch"
    ended = subprocess.run(["bash", script, "--data=/data"], env=env, check=False, timeout=LIMIT_S)
    assert ended.returncode == status
    started = (seen / "srun").read_text()
    assert "python examples/mnist/train.py --devices=2 --nodes=1 --data=/data" in started
    requeues = status == 75 and restarts < 20
    assert (seen / "scontrol").exists() == requeues
    if requeues:
        assert (seen / "scontrol").read_text() == "requeue 17\n"


def test_hadolint_finds_nothing_in_the_training_image() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    subprocess.run([hadolint, ROOT / "examples" / "Dockerfile"], check=True)


def test_the_training_image_is_sent_all_that_it_copies() -> None:
    text = (ROOT / "examples" / "Dockerfile").read_text()
    sent = (ROOT / "examples" / "Dockerfile.dockerignore").read_text().split()
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert f"!{source}" in sent
