"""`examples/power_limit.py`, with a fake GPU and without any."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from fake_nvml import FakeDriver
from waiting import LIMIT_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "power_limit.py"
SMALL = ("--width=16", "--batch-size=8", "--batches=1500", "--min-seconds=0.02", "--search=sweep")


def example(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(EXAMPLE), *options]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def in_this_process(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Run it where Lightning is imported already, which takes seconds."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_without_a_gpu_it_says_so_and_exits_cleanly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_this_process(monkeypatch)
    printed = capsys.readouterr()
    assert "sees no NVIDIA GPU" in printed.out
    assert "zeus-lightning doctor --power-limit" in printed.out
    assert printed.err == ""


def test_on_a_gpu_it_finds_a_limit_and_the_next_run_starts_there(
    fake_gpus: FakeDriver, tmp_path: Path
) -> None:
    fake_gpus.gpus[0].limit_mw = 250_000
    fake_gpus.gpus[0].set_load(1)
    first = example(tmp_path, *SMALL, "--meter=nvml:0")
    assert first.returncode == 0, first.stderr
    assert "* chosen by zeus-cost" in first.stderr
    trained_at = first.stdout
    assert trained_at.startswith("Trained at ")
    second = example(tmp_path, *SMALL, "--meter=nvml:0")
    assert second.stdout == trained_at
    assert "* chosen by" not in second.stderr
    assert fake_gpus.gpus[0].limit_mw == 250_000


def test_without_the_right_it_is_one_message(
    fake_gpus: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.gpus[0].fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        in_this_process(monkeypatch, *SMALL, "--meter=nvml:0")
    assert isinstance(end.value.code, str)  # Python prints it, and exits with 1
    assert "--cap-add SYS_ADMIN" in end.value.code.splitlines()[-1]
