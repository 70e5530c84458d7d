"""Start runs on several ranks, in each way that Lightning can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts import ScriptProcess, wait_for_groups
from service_process import free_port

SCRIPT = Path(__file__).parent / "lightning" / "train_on_ranks.py"
DEADLINE_S = 300  # of a loaded machine; a hang lasts for ever
Process = ScriptProcess | subprocess.Popen[bytes]


@contextmanager
def running_ranks(
    folder: Path,
    scenarios: Mapping[str, str],
    *,
    launcher: Sequence[str] = (),
    script: Path = SCRIPT,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    fresh: bool = False,
    **trainer_arguments: Any,
) -> Iterator[list[Process]]:
    """Scenarios of `script` under way; in the end all of their processes are killed.

    Each has its URL, and they run one after the other. What is yielded is the process of each node,
    which leads a process group of its own.

    Args:
        folder: Where each rank leaves what it saw.
        scenarios: Names and URLs.
        launcher: What starts the script, such as `-m torch.distributed.run`.
        script: `train_on_ranks.py`, or another one that has the same arguments.
        nodes: Start it so many times, each with its `NODE_RANK`.
        env: Variables beside this process's.
        fresh: Start a new interpreter, as a launcher does, where how it exits matters.
        trainer_arguments: Of the Trainer, or of Fabric.
    """
    arguments = {"strategy": "ddp", "devices": 2, "num_nodes": nodes, **trainer_arguments}
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TRAINER_ARGUMENTS": json.dumps(arguments),
        **(env or {}),
    }
    if launcher:
        del variables["MASTER_ADDR"], variables["MASTER_PORT"]
    arguments_of_script = [str(folder), *(f"{name}={url}" for name, url in scenarios.items())]

    def start(node: Mapping[str, str]) -> Process:
        env = variables | node
        if not (launcher or fresh):
            return ScriptProcess(script, arguments_of_script, env)
        command = [sys.executable, *launcher, str(script), *arguments_of_script]
        return subprocess.Popen(command, env=env, start_new_session=True)

    numbers = [{"NODE_RANK": str(n)} for n in range(nodes)] if nodes > 1 else [{}]
    processes = [start(number) for number in numbers]
    try:
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # whoever is left of its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=DEADLINE_S)


def run_ranks(folder: Path, scenarios: Mapping[str, str], **arguments: Any) -> int:
    """Run scenarios to the end of each rank; see `running_ranks`. A hang is a failure.

    Returns:
        The highest exit status of the nodes; a signal's is positive too.
    """
    with running_ranks(folder, scenarios, **arguments) as processes:
        status = max(abs(process.wait(timeout=DEADLINE_S)) for process in processes)
        wait_for_groups({process.pid for process in processes})
        return status


def seen(folder: Path, scenario: str) -> list[dict[str, Any]]:
    """What the ranks saw of a scenario, in their order."""
    paths = sorted(folder.glob(f"{scenario}.*.json"), key=lambda path: int(path.suffixes[-2][1:]))
    return [json.loads(path.read_text()) for path in paths]
