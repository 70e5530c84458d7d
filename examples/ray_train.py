"""The quickstart's job in Ray Train, on two workers with a CPU each; each run is one recurrence.

    pip install '.[ray]' ./service
    zeus-service serve &
    python examples/ray_train.py

Ray starts the workers again when a run of them fails. So within one `fit()` a batch size that has
failed is followed by a new trial with another, and a trial whose worker died is resumed.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import ray.train
import torch
from quickstart import Digits, DigitsNet
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from ray.train.torch import TorchTrainer

from zeus_lightning import ZeusBSOCallback
from zeus_lightning.client import BSOClient
from zeus_lightning.run.record import RESUMABLE


def train(config: dict[str, Any]) -> str:
    """Train until the trial ends; Ray calls this in each worker, and again after a failure."""
    zeus = ZeusBSOCallback(
        config["url"],
        target_metric=0.95,
        monitor="val_acc",
        job_id=os.environ.get("ZEUS_JOB_ID") or "digits-on-ray",
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices="auto",  # Ray's strategy and environment tell Lightning the workers
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        max_epochs=config["max_epochs"],
        callbacks=[zeus, RayTrainReportCallback()],  # which gives Ray a checkpoint of each epoch
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with ExitStack() as stack:
        resumed = None
        if checkpoint := ray.train.get_checkpoint():
            folder = stack.enter_context(checkpoint.as_directory())
            saved = Path(folder) / RayTrainReportCallback.CHECKPOINT_NAME
            resumed = saved if has_open_trial(saved, zeus, config["url"]) else None
        # Ray takes the error of a batch size that has failed, and calls train() again.
        prepare_trainer(trainer).fit(DigitsNet(), datamodule=Digits(), ckpt_path=resumed)
    if zeus.last_report is None:
        return str(zeus.outcome)
    return f"{zeus.outcome} in {zeus.last_report.epoch} epochs at a cost of {zeus.cost_j:.1f} J"


def has_open_trial(checkpoint: Path, zeus: ZeusBSOCallback, url: str) -> bool:
    """Whether the trial of a checkpoint can go on: not if its batch size has failed.

    The service knows, however the trial ended; the last checkpoint was saved before that.
    """
    state = torch.load(checkpoint, weights_only=True)["callbacks"][zeus.state_key]
    status = BSOClient(url).trial_status(state["job"]["job_id"], state["trial"]["trial_number"])
    return status is not None and status.outcome in RESUMABLE


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    url = os.environ.get("ZEUS_SERVER_URL", "http://127.0.0.1:8765")
    parser.add_argument("--url", default=url, help="the service, as the workers reach it")
    parser.add_argument(
        "--folder", type=Path, default=Path(".zeus/ray"), help="folder for checkpoints"
    )
    parser.add_argument("--max-epochs", type=int, default=60)
    options = parser.parse_args()

    # A Ray of this machine alone. On a cluster, leave this out, and let --folder be shared.
    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    result = TorchTrainer(
        train,
        train_loop_config={"url": options.url, "max_epochs": options.max_epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(options.folder.absolute()),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            # How often the workers are started again; with 0, the first failure is an error.
            failure_config=ray.train.FailureConfig(max_failures=20),
        ),
    ).fit()
    print(result.return_value)


if __name__ == "__main__":
    main()
