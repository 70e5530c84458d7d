"""examples/mnist as its README has it, on scikit-learn's digits in MNIST's format."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import run_here
from service_process import BIN

MNIST = Path(__file__).parents[2] / "examples" / "mnist"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four files; one of them compressed, as MNIST is published."""
    folder = tmp_path_factory.mktemp("digits")
    run_here(MNIST / "digits_as_idx.py", folder)
    images = folder / "train-images-idx3-ubyte"
    with gzip.open(f"{images}.gz", "wb") as file:
        file.write(images.read_bytes())
    images.unlink()
    return folder


@pytest.mark.parametrize(
    ("launcher", "arguments"),
    [
        ([sys.executable], []),
        ([str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2"], ["--devices=2"]),
    ],
)
def test_a_recurrence_reaches_its_target(
    digits: Path, tmp_path: Path, launcher: Sequence[str], arguments: Sequence[str]
) -> None:
    result = subprocess.run(
        [
            *(BIN / "zeus-lightning", "recur", "--recurrences=1"),
            *(f"--folder={tmp_path / 'recur'}", "--"),
            *(*launcher, MNIST / "train.py", f"--data={digits}", "--target=0.5", *arguments),
        ],
        env=os.environ | {"ZEUS_JOB_ID": "digits"},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("recur/run-0001/*.log"))
    assert result.returncode == 0, result.stdout + result.stderr + logs
    found = json.loads((tmp_path / "recur" / "run-0001" / "0001-01.json").read_text())
    trial = found["trial"]
    assert (trial["job_id"], trial["batch_size"]) == ("digits", 128)
    assert found["outcome"] == "converged"
    assert f"converged in {found['report']['epoch']} epochs" in logs
