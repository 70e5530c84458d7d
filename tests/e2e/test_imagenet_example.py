"""examples/imagenet as its README has it, on a few of scikit-learn's digits in such folders."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from programs import new_job, trials
from scripts import run_here
from service_process import BIN, ServiceProcess, free_port
from waiting import LIMIT_S

IMAGENET = Path(__file__).parents[2] / "examples" / "imagenet"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    run_here(IMAGENET / "digits_as_folders.py", folder, 64, 32)
    return folder


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return runpy.run_path(str(IMAGENET / "train.py"))


def test_two_nodes_train_one_trial(service: ServiceProcess, digits: Path) -> None:
    """Until any accuracy: that it learns takes minutes on a CPU, and is for the README's reader."""
    job = new_job()
    env = {**os.environ, "ZEUS_SERVER_URL": service.url, "ZEUS_JOB_ID": job}
    launcher = [
        BIN / "torchrun",
        "--nnodes=2",
        "--nproc-per-node=1",
        f"--master-port={free_port()}",
    ]
    train = [IMAGENET / "train.py", f"--data={digits}", "--layers=18", "--size=32", "--nodes=2"]
    train += ["--devices=1", "--batch-size=32", "--target=0.001", "--epochs=5"]
    nodes = [
        subprocess.Popen(
            [*launcher, f"--node-rank={rank}", *train],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [node.communicate(timeout=LIMIT_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "".join(printed)
    (trial,) = trials(service.url, job)
    assert (trial["outcome"], trial["batch_size"]) == ("converged", 32)
    assert [text.count("converged in ") for text in printed] == [1, 0]


def test_the_network_is_resnet_50(program: dict[str, Any]) -> None:
    module = program["Classifier"](50)
    assert sum(each.numel() for each in module.parameters()) == 25_557_032
    assert program["Classifier"](18)(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_a_class_is_a_folder_by_its_name(program: dict[str, Any], digits: Path) -> None:
    data = program["Folder"](digits / "val", program["central_crop"], 32)
    assert data.classes == [f"digit-{number}" for number in range(10)]
    assert len(data) == 32
    for index, (path, _) in enumerate(data.samples):
        image, label = data[index]
        assert path.parent.name == f"digit-{label}"
        assert (image.shape, image.dtype) == ((3, 32, 32), torch.uint8)


def test_crops_are_parts_of_the_image_and_some_are_mirrored(program: dict[str, Any]) -> None:
    """On an image whose red grows to the right, and whose green grows downward."""
    pixels = np.zeros((120, 200, 3), np.uint8)
    pixels[..., 0] = np.arange(200)
    pixels[..., 1] = np.arange(120)[:, None]
    image = Image.fromarray(pixels)
    middle = np.array(program["central_crop"](image, 32)).astype(int)
    assert middle[0, 0, 0] == pytest.approx((200 - 105) / 2, abs=3)
    assert middle[0, 0, 1] == pytest.approx((120 - 105) / 2, abs=3)
    torch.manual_seed(0)
    directions, areas = set(), []
    for _ in range(200):
        part = np.array(program["random_crop"](image, 32)).astype(int)
        width, height = part[0, -1, 0] - part[0, 0, 0], part[-1, 0, 1] - part[0, 0, 1]
        directions.add(bool(width > 0))
        areas.append(abs(width) * height / (200 * 120))
        assert height > 0
    assert directions == {True, False}
    assert 0.04 < min(areas) < 0.2
    assert max(areas) > 0.6


def test_folders_of_other_classes_are_an_error(program: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train" / "dog").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="other folders of classes"):
        program["ImageNet"](tmp_path, 32, 8, 0).setup("fit")
