r"""The quickstart's job for LightningCLI: everything about it stands in a YAML file.

zeus-lightning recur -- \
    python -m examples.lightning_cli.train fit --config examples/lightning_cli/config.yaml
"""

from __future__ import annotations

from lightning.pytorch.cli import LightningCLI

from examples.quickstart import Digits, DigitsNet

if __name__ == "__main__":
    # a recurring job runs in one folder again and again: no copy of the config that must not exist
    LightningCLI(DigitsNet, Digits, save_config_callback=None)
