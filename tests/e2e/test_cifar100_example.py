"""examples/cifar100 as its README has it, on a few of scikit-learn's digits in that format."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from scripts import run_here
from service_process import BIN
from sklearn.datasets import load_digits
from torch import nn

CIFAR100 = Path(__file__).parents[2] / "examples" / "cifar100"


def test_a_recurrence_trains_on_two_processes(tmp_path: Path) -> None:
    """Until any accuracy: training to a target takes minutes on a CPU."""
    data = tmp_path / "data"
    run_here(CIFAR100 / "digits_as_cifar.py", data, 64, 32)
    launcher = (BIN / "torchrun", "--standalone", "--nproc-per-node=2")
    train = (*launcher, CIFAR100 / "train.py", f"--data={data}", "--devices=2")
    result = subprocess.run(
        [
            *(BIN / "zeus-lightning", "recur", "--recurrences=1"),
            *(f"--folder={tmp_path / 'recur'}", f"--json={tmp_path / 'tries.json'}", "--"),
            *(*train, "--target=0.001", "--epochs=5", "--batch-size=32"),
        ],
        env=os.environ | {"ZEUS_JOB_ID": "cifar"},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("recur/run-0001/*.log"))
    assert result.returncode == 0, result.stdout + result.stderr + logs
    tries = json.loads((tmp_path / "tries.json").read_text())["tries"]
    assert [(each["outcome"], each["batch_size"]) for each in tries] == [("converged", 32)]
    assert logs.count("converged in ") == 1  # rank zero's


def test_the_network_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CIFAR100))
    from shufflenet import ShuffleNetV2

    count = sum(each.numel() for each in ShuffleNetV2(1000).parameters())
    assert count == 2_278_604  # the paper's table 5 rounds it to 2.3 million
    assert ShuffleNetV2(100)(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_the_module_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CIFAR100))
    from train import Classifier

    torch.manual_seed(0)
    digits, labels = load_digits(n_class=2, return_X_y=True)
    small = torch.from_numpy(digits[:16] * 255 / 16).reshape(-1, 1, 8, 8)
    images = nn.functional.interpolate(small, scale_factor=4).repeat(1, 3, 1, 1)
    module = Classifier()
    optimizer = module.configure_optimizers()
    for _ in range(6):
        loss = nn.functional.cross_entropy(module(images), torch.from_numpy(labels[:16]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.35  # log 2 = 0.69 if it took both digits for equally likely


def test_images_are_shifted_and_mirrored_and_keep_their_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(CIFAR100))
    from train import augmented

    image = torch.arange(1.0, 3 * 32 * 32 + 1).reshape(1, 3, 32, 32)
    for one in augmented(image.repeat(64, 1, 1, 1)):
        inside = one[:, 8:24, 8:24]  # no shift moves the margin so far in
        right = inside[:, :, 1:] - inside[:, :, :-1]
        assert right.unique().tolist() in ([1.0], [-1.0])
        assert (inside[:, 1:] - inside[:, :-1]).unique().tolist() == [32.0]
        assert (inside[1:] - inside[:-1]).unique().tolist() == [1024.0]
