"""The quickstart's job on several processes: on CPUs here, and on GPUs where there are some.

    zeus-service serve &
    python examples/digits_ddp.py                           # Lightning starts the second process
    torchrun --nproc-per-node=2 examples/digits_ddp.py      # torchrun starts both

Every process runs this same script. Only rank zero asks the service; all train with their share of
the batch size it gives, and stop together. Run it as often as you like: each run is one recurrence
of the job, and a run whose batch size did not pay ends with a message and exit status 1.
"""

from __future__ import annotations

import argparse
import os

import lightning as L
import torch
from quickstart import Digits, DigitsNet

from zeus_lightning import ZeusBSOCallback, ZeusError


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    url = os.environ.get("ZEUS_SERVER_URL", "http://127.0.0.1:8765")
    parser.add_argument("--url", default=url, help="the service")
    parser.add_argument("--devices", type=int, default=2, help="processes on each node")
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is so small that more threads only wait for each other
    zeus = ZeusBSOCallback(
        options.url,
        target_metric=0.95,
        monitor="val_acc",
        job_id=os.environ.get("ZEUS_JOB_ID") or f"digits-on-{options.nodes * options.devices}",
        batch_sizes=[16, 32, 64, 128, 256],  # global: of one step, over all processes
    )
    trainer = L.Trainer(
        strategy="ddp",
        devices=options.devices,
        num_nodes=options.nodes,
        max_epochs=60,
        callbacks=[zeus],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(DigitsNet(), datamodule=Digits())
    except ZeusError as error:
        if trainer.is_global_zero:
            print(error)
        raise SystemExit(1) from None
    if trainer.is_global_zero and zeus.last_report is not None:
        print(f"{zeus.outcome} in {zeus.last_report.epoch} epochs at a cost of {zeus.cost_j:.1f} J")


if __name__ == "__main__":
    main()
