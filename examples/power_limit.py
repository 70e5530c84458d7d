"""Find the best power limit of a GPU while a small network trains on it.

Needs an NVIDIA GPU and the right to set its power limit (root, or CAP_SYS_ADMIN; in a container
`--cap-add SYS_ADMIN`). The limit found at the start is restored at the end.

    python examples/power_limit.py                              # the lowest cost
    python examples/power_limit.py --selector max-slowdown:1.1  # the lowest limit 10 % slower
    python examples/power_limit.py --observe                    # change nothing

Run it again, and the limit is applied from the first step: the profile is stored in a file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zeus_lightning import ZeusError, ZeusPowerLimitCallback


class Net(L.LightningModule):
    """A perceptron wide enough to keep the GPU busy."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = (nn.Linear(width, width), nn.ReLU())
        self.net = nn.Sequential(*layers, *layers, *layers, nn.Linear(width, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def random_data(width: int, batch_size: int, batches: int) -> DataLoader[tuple[Tensor, ...]]:
    """Repeat a few random samples: their values do not change the cost of a batch."""
    samples = batch_size * 8
    data = TensorDataset(torch.randn(samples, width), torch.randint(10, (samples,)))
    again = torch.arange(batch_size * batches) % samples
    return DataLoader(data, batch_size=batch_size, sampler=again.tolist())


def main() -> None:
    """Train, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--selector", default="zeus-cost", help="how to choose the limit")
    parser.add_argument("--observe", action="store_true", help="set no limit")
    parser.add_argument("--profile", type=Path, default=Path("power-profile.json"))
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--min-seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument(
        "--meter", default="auto", help="nvml:0 trains on the CPU and sets the limit of that GPU"
    )
    options = parser.parse_args()
    if options.meter == "auto" and not torch.cuda.is_available():
        print(
            "PyTorch sees no NVIDIA GPU here, so there is no power limit to find. Run this on a "
            "machine with one; `zeus-lightning doctor --power-limit` shows whether limits can be "
            "set there."
        )
        return

    callback = ZeusPowerLimitCallback(
        options.selector,
        min_seconds=options.min_seconds,
        profile_path=options.profile,
        apply=not options.observe,
        on_unavailable="raise",  # this program has no other purpose
        meter=options.meter,
    )
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="gpu" if options.meter == "auto" else "cpu",
        devices=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    try:
        trainer.fit(
            Net(options.width), random_data(options.width, options.batch_size, options.batches)
        )
    except ZeusError as error:
        raise SystemExit(str(error)) from None
    if callback.limit_w is not None:
        print(f"Trained at {callback.limit_w} W. Run this again to start at that limit.")


if __name__ == "__main__":
    main()
