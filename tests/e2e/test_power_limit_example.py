"""`examples/power_limit.py`, with a fake GPU and without any."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml
import pytest
from fake_nvml import FakeDriver
from scripts import ScriptProcess, run_here

EXAMPLE = Path(__file__).parents[2] / "examples" / "power_limit.py"
SMALL = ("--width=16", "--batch-size=8", "--batches=1500", "--min-seconds=0.02")


def example(folder: Path, *options: str) -> tuple[str, str]:
    """What it prints, and what it logs, in a process of its own."""
    output, errors = folder / "output", folder / "errors"
    process = ScriptProcess(EXAMPLE, options, os.environ, output, errors, folder)
    assert process.wait() == 0, errors.read_text()
    return output.read_text(), errors.read_text()


def test_without_a_gpu_it_says_so_and_exits_cleanly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_here(EXAMPLE)
    printed = capsys.readouterr()
    assert "sees no NVIDIA GPU" in printed.out
    assert "zeus-lightning doctor --power-limit" in printed.out
    assert printed.err == ""


def test_on_a_gpu_it_finds_a_limit_and_the_next_run_starts_there(
    fake_gpus: FakeDriver, tmp_path: Path
) -> None:
    fake_gpus.gpus[0].limit_mw = 250_000
    fake_gpus.gpus[0].set_load(1)
    trained_at, logged = example(tmp_path, *SMALL, "--meter=nvml:0")
    assert "* chosen by zeus-cost" in logged
    assert trained_at.startswith("Trained at ")
    printed, logged = example(tmp_path, *SMALL, "--meter=nvml:0")
    assert printed == trained_at
    assert "* chosen by" not in logged
    assert fake_gpus.gpus[0].limit_mw == 250_000


def test_without_the_right_it_is_one_message(
    fake_gpus: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.gpus[0].fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        run_here(EXAMPLE, *SMALL, "--meter=nvml:0")
    assert isinstance(end.value.code, str)  # Python prints it, and exits with 1
    assert "with CAP_SYS_ADMIN" in end.value.code.splitlines()[-1]
