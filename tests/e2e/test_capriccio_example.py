"""examples/capriccio as its README has it, on a made-up corpus."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from programs import new_job
from scripts import run_here
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S

CAPRICCIO = Path(__file__).parents[2] / "examples" / "capriccio"
SLICES = 38


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    run_here(CAPRICCIO / "made_up_slices.py", folder, "--size=2000", "--stride=200")
    return folder


def test_each_recurrence_trains_on_its_own_slice(
    service: ServiceProcess, slices: Path, tmp_path: Path
) -> None:
    job = new_job()
    result = subprocess.run(
        [
            *(BIN / "zeus-lightning", "recur", "--recurrences=2", f"--folder={tmp_path}", "--"),
            *(sys.executable, CAPRICCIO / "train.py", f"--data={slices}", "--target=0.9"),
        ],
        env={**os.environ, "ZEUS_SERVER_URL": service.url, "ZEUS_JOB_ID": job},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("run-0001/*.log"))
    assert result.returncode == 0, result.stdout + result.stderr + logs
    for number in (1, 2):
        assert f"slice {number}: converged at a cost of" in logs
    spec = requests.get(f"{service.url}/api/v1/jobs/{job}", timeout=LIMIT_S).json()["spec"]
    assert (spec["window_size"], spec["default_batch_size"]) == (10, 128)


def test_words_change_sides_from_the_first_slice_to_the_last(slices: Path) -> None:
    program: dict[str, Any] = runpy.run_path(str(CAPRICCIO / "train.py"))
    first, last = (program["Slice"](slices, number) for number in (1, SLICES))
    for each in (first, last):
        each.setup("fit")
    module = program["Classifier"]()
    optimizer = module.configure_optimizers()
    for _ in range(3):
        for batch in first.train_dataloader():
            optimizer.zero_grad()
            module.training_step(batch, 0).backward()
            optimizer.step()

    def accuracy(data: Any) -> float:
        with torch.no_grad():
            right = [module(n, s).argmax(1) == labels for n, s, labels in data.val_dataloader()]
        return float(torch.cat(right).float().mean())

    assert accuracy(first) > 0.85
    assert accuracy(last) < 0.5
