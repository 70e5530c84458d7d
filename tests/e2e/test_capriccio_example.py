"""examples/capriccio as its README has it, on a made-up corpus, and a BERT of two small layers."""

from __future__ import annotations

import json
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
from torch.utils.data import DataLoader
from waiting import LIMIT_S

CAPRICCIO = Path(__file__).parents[2] / "examples" / "capriccio"
SLICES = 38


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    run_here(CAPRICCIO / "made_up_slices.py", folder, "--size=2000", "--stride=200")
    return folder


def accuracy(program: dict[str, Any], weights: Path, slices: Path, number: int) -> float:
    """Share of a slice's validation posts that a trained model gets right."""
    module = program["Classifier"](program["BagOfWords"](), 0.1)
    module.load_state_dict(torch.load(weights))
    data = program["Slice"](slices, number, module.model.encode, 128)
    data.setup("validate")
    loader: DataLoader[Any] = data.val_dataloader()
    with torch.no_grad():
        right = [module.model(**inputs).argmax(1) == labels for inputs, labels in loader]
    return float(torch.cat(right).float().mean())


def test_each_recurrence_follows_the_drift_to_its_own_slice(
    service: ServiceProcess, slices: Path, tmp_path: Path
) -> None:
    job = new_job()
    train = (sys.executable, CAPRICCIO / "train.py", f"--data={slices}", "--target=0.9")
    weights = {number: tmp_path / f"weights-{number}" for number in (1, SLICES)}
    env = {**os.environ, "ZEUS_SERVER_URL": service.url, "ZEUS_JOB_ID": job}
    first = [*train, f"--save={weights[1]}"]
    recur = [BIN / "zeus-lightning", "recur", "--recurrences=1", f"--folder={tmp_path / 'recur'}"]
    subprocess.run([*recur, "--", *first], env=env, check=True)
    last = [*train, f"--slice={SLICES}", f"--save={weights[SLICES]}"]
    # a data-parallel job is another one: its devices are part of it
    last = [BIN / "torchrun", "--standalone", "--nproc-per-node=2", *last[1:], "--devices=2"]
    subprocess.run(last, env=env | {"ZEUS_JOB_ID": new_job()}, check=True)

    program = runpy.run_path(str(CAPRICCIO / "train.py"))
    assert accuracy(program, weights[1], slices, 1) > 0.85
    assert accuracy(program, weights[1], slices, SLICES) < 0.5  # words have changed sides
    assert accuracy(program, weights[SLICES], slices, SLICES) > 0.85
    spec = requests.get(f"{service.url}/api/v1/jobs/{job}", timeout=LIMIT_S).json()["spec"]
    assert (spec["window_size"], spec["default_batch_size"]) == (10, 128)


def test_a_pretrained_model_is_taken_by_its_name(slices: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(400))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(words), num_hidden_layers=2, **size)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    program = runpy.run_path(str(CAPRICCIO / "train.py"))
    model = program["Pretrained"](str(tmp_path))
    data = program["Slice"](slices, 1, model.encode, 8)
    data.setup("fit")
    inputs, labels = next(iter(data.train_dataloader()))
    assert len(labels) == len(inputs["input_ids"]) == 8
    assert model(**inputs).shape == (8, 2)
    post = json.loads((slices / "1_train.json").read_text().splitlines()[0])
    tokens = model.tokenizer.tokenize(post["text"])
    assert tokens == post["text"].split()
