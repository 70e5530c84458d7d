"""A LightningCLI program, for `both_callbacks.yaml`."""

from gpu_programs import ManyBatches
from lightning.pytorch.cli import LightningCLI
from programs import Net

if __name__ == "__main__":
    LightningCLI(Net, ManyBatches)
