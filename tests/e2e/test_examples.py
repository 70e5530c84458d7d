"""The examples beside the quickstart, as their headings say to run them."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from programs import trials
from proxy import Proxy, Request
from scripts import ScriptProcess, run_here, wait_for_groups
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S

from zeus_lightning import ZeusBSOCallback, ZeusConfigError

ROOT = Path(__file__).parents[2]
DDP = ROOT / "examples" / "digits_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
CONFIG = ROOT / "examples" / "lightning_cli" / "config.yaml"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("service")) as process:
        yield process


def variables() -> dict[str, str]:
    """The environment of a command, with a port at which its processes meet."""
    port = str(free_port())
    return {**os.environ, "COLUMNS": "120", "MASTER_PORT": port, "PET_MASTER_PORT": port}


def run(*command: str, **env: str) -> str:
    """What a command prints, with these variables beside this process's."""
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=variables() | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def run_forked(script: Path, *arguments: str, folder: Path, status: int = 0) -> str:
    """What a script prints, as `run`, in a process that need not import Lightning anew."""
    output = folder / "output"
    process = ScriptProcess(script, arguments, variables(), output, folder=ROOT)
    assert process.wait() == status, output.read_text()
    wait_for_groups({process.pid})
    return output.read_text()


Printed = Callable[..., str]


@pytest.fixture
def printed_by(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """What the command line prints where it trains nothing, in this process."""

    def printed(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train", "fit", *arguments])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit, match=r"0|None"):
            runpy.run_module("examples.lightning_cli.train", run_name="__main__")
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_the_job_on_two_processes_is_one_trial(
    service: ServiceProcess, tmp_path: Path, launcher: str
) -> None:
    before = len(trials(service.url, "digits-on-2"))
    url = f"--url={service.url}"
    if launcher == "python":
        printed = run_forked(DDP, url, folder=tmp_path)
    else:
        printed = run(*TORCHRUN, str(DDP), url)
    after = trials(service.url, "digits-on-2")
    assert len(after) == before + 1
    assert after[-1]["outcome"] == "converged"
    assert printed.count("converged in ") == 1


def test_a_loop_of_fabrics_on_two_processes_is_one_trial(service: ServiceProcess) -> None:
    loop = str(ROOT / "examples" / "fabric_loop.py")
    printed = run(sys.executable, loop, "--devices=2", ZEUS_SERVER_URL=service.url)
    (trial,) = trials(service.url, "digits-fabric-2")
    assert trial["outcome"] == "converged"
    assert printed.count("converged at a cost of") == 1


def test_a_killed_trainer_of_huggingfaces_is_resumed_on_two_processes_with_its_trial(
    service: ServiceProcess, tmp_path: Path
) -> None:
    def kill(request: Request) -> None:
        if request.kind == "report" and request.body["epoch"] == 2:  # the first one is saved
            family = psutil.Process(started[0].pid)
            for process in (*family.children(recursive=True), family):
                process.kill()

    program = str(ROOT / "examples" / "huggingface_trainer.py")
    started: list[subprocess.Popen[bytes]] = []
    with Proxy(service.url, instead=kill) as proxy:
        options = [f"--url={proxy.url}", f"--folder={tmp_path}", "--accumulate=2"]
        started.append(subprocess.Popen([*TORCHRUN, program, *options], env=variables()))
        started[0].wait(timeout=LIMIT_S)
    (saved,) = tmp_path.rglob("zeus.json")
    spent_j = json.loads(saved.read_text())["spent"]["energy_j"]
    (trial,) = trials(service.url, "huggingface-2")
    assert trial["outcome"] is None

    options[0] = f"--url={service.url}"
    printed = run(*TORCHRUN, program, *options, f"--resume={saved.parent}")
    assert printed.count("resuming trial 1 of job 'huggingface-2'") == 1
    assert printed.count("converged with batch size 64 at a cost of") == 1
    (trial,) = trials(service.url, "huggingface-2")
    assert trial["outcome"] == "converged"
    assert trial["energy_j"] > spent_j > 0
    (found,) = tmp_path.rglob("trainer_state.json")
    state = json.loads(found.read_text())
    assert state["epoch"] == trial["epoch"] < 20  # it was stopped there
    assert state["global_step"] == trial["epoch"] * 512 // 64


def test_a_trainer_of_huggingfaces_whose_steps_take_another_batch_size_is_an_error() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "huggingface_trainer.py"))
    arguments = SimpleNamespace(train_batch_size=64, gradient_accumulation_steps=2, world_size=1)
    callback = example["ZeusCallback"](SimpleNamespace(batch_size=64), "eval_accuracy")
    with pytest.raises(ZeusConfigError, match="takes 128 samples, but the run's batch size is 64"):
        callback.on_train_begin(arguments, None, None)


def test_without_a_service_the_example_says_so_and_ends(tmp_path: Path) -> None:
    """On one rank: `test_distributed.py` shows that all raise it, and none waits."""
    nobody = f"--url=http://127.0.0.1:{free_port()}"
    printed = run_forked(DDP, nobody, "--devices=1", folder=tmp_path, status=1)
    assert "check the service, or pass require_service=False" in printed


def test_the_yaml_config_trains(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    monkeypatch.setattr(sys, "argv", ["train", "fit", f"--config={CONFIG}"])
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    monkeypatch.chdir(tmp_path)
    runpy.run_module("examples.lightning_cli.train", run_name="__main__")
    (trial,) = trials(service.url, "digits-from-yaml")
    assert trial["outcome"] == "converged"
    assert trial["batch_size"] == config["data"]["batch_size"]


def test_every_argument_is_typed_and_explained_in_the_help(printed_by: Printed) -> None:
    printed = printed_by("--trainer.callbacks.help=zeus_lightning.ZeusBSOCallback")
    _, _, helped = printed.partition("Help for ")
    paragraphs = {}
    for paragraph in helped.split("\n  --trainer.callbacks.")[1:]:
        name, _, about = " ".join(paragraph.split()).partition(" ")
        paragraphs[name.rstrip(",")] = about
    for name in inspect.signature(ZeusBSOCallback).parameters:
        explanation, _, kind = paragraphs[name].partition("type: ")
        assert kind, name
        assert len(explanation.split()) >= 4, name


def test_the_printed_config_is_read_again_as_it_is(printed_by: Printed, tmp_path: Path) -> None:
    first = printed_by(f"--config={CONFIG}", "--print_config")
    (tmp_path / "printed.yaml").write_text(first)
    second = printed_by(f"--config={tmp_path / 'printed.yaml'}", "--print_config")
    arguments: list[Any] = [
        yaml.safe_load(text)["trainer"]["callbacks"][0] for text in (first, second)
    ]
    assert arguments[0] == arguments[1]
    assert arguments[0]["init_args"].keys() == inspect.signature(ZeusBSOCallback).parameters.keys()


def test_the_extra_for_the_examples_has_what_they_import() -> None:
    """With what the two distributions need themselves."""
    ours = ConfigParser()
    ours.read(ROOT / "setup.cfg")
    requirements = [
        ours["options"]["install_requires"],
        ours["options.extras_require"]["examples"],
        (ROOT / "service" / "requirements.txt").read_text(),
    ]
    needed = {re.split(r"[^\w.-]", line)[0].lower() for line in "\n".join(requirements).split()}
    distributions = metadata.packages_distributions()
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for path in (ROOT / "examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    imported -= {"examples", "zeus_lightning", "zeus_service"}
    imported -= {"ray"}  # it is large, and has an extra of its own
    imported -= {path.stem for path in (ROOT / "examples").rglob("*.py")}
    for module in imported - sys.stdlib_module_names:
        assert {each.lower() for each in distributions[module]} & needed, module


def test_data_that_are_missing_are_one_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, message in (
        ("mnist", f"there is no folder {tmp_path}/none; README.md says what it must contain"),
        ("capriccio", f"there is no slice 1 in {tmp_path}/none"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_here(ROOT / "examples" / name / "train.py", "--data", tmp_path / "none")
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f"error: {message}\n")
