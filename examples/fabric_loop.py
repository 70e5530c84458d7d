"""The quickstart's job in a loop of one's own, with Lightning Fabric; each run is one recurrence.

zeus-service serve &
python examples/fabric_loop.py --devices=2
"""

from __future__ import annotations

import argparse
import os

import torch
from lightning.fabric import Fabric
from quickstart import Digits, DigitsNet

from zeus_lightning import Recurrence, ZeusTrialFailed

EPOCHS = 60


def train(fabric: Fabric, url: str) -> Recurrence:
    """Train once, and return how it went."""
    digits = Digits()
    digits.setup("fit")
    module = DigitsNet()
    model, optimizer = fabric.setup(
        module.net, torch.optim.SGD(module.net.parameters(), module.lr, momentum=0.9)
    )
    with Recurrence(
        url,
        job_id=os.environ.get("ZEUS_JOB_ID") or f"digits-fabric-{fabric.world_size}",
        target_metric=0.95,
        monitor="val_acc",
        batch_sizes=[16, 32, 64, 128, 256],
        default_batch_size=64,
        max_epochs=EPOCHS,
        fabric=fabric,
    ) as run:
        digits.batch_size = run.local_batch_size
        batches = fabric.setup_dataloaders(digits.train_dataloader())
        (held_out,) = digits.val_dataloader()
        images, labels = (tensor.to(fabric.device) for tensor in held_out)
        for _ in range(EPOCHS):
            for image, label in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(image), label)
                fabric.backward(loss)
                optimizer.step()
            with torch.no_grad():
                right = model(images).argmax(1) == labels
            if run.report(float(right.float().mean())).stop:
                break
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    url = os.environ.get("ZEUS_SERVER_URL", "http://127.0.0.1:8765")
    parser.add_argument("--url", default=url, help="the service")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    fabric = Fabric(devices=options.devices, strategy="ddp" if options.devices > 1 else "auto")
    fabric.launch()
    try:
        run = train(fabric, options.url)
        fabric.print(f"{run.outcome} at a cost of {run.cost_j:.1f} J")
    except ZeusTrialFailed as error:
        fabric.print(error)
        raise SystemExit(1) from None
