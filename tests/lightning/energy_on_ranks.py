"""Measures a fit and a test on two ranks. Arguments: a folder for results, then METER=.

Each rank writes what it saw of them, and what it logged, to `METER.RANK.json`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

from programs import BrokenOnRankOne, Data, Net, OfTheNode, Raise, StepMeter, trainer

from zeus_lightning import ZeusEnergyCallback
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.run import run_meter

FOLDER = Path(sys.argv[1])
RANK = int(os.environ.get("LOCAL_RANK", "0"))


class Lines(logging.Handler):
    """Keeps the lines of ours that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("zeus: "):
            self.kept.append(record.getMessage())


class Tested(Net):
    def test_step(self, batch: Any, index: int) -> None:
        pass


class TestedData(Data):
    test_dataloader = Data.val_dataloader


METERS: dict[str, Any] = {
    "own": StepMeter,
    "node": OfTheNode,
    "two-nodes": OfTheNode,
    "broken": lambda: BrokenOnRankOne(4),
    "gpus": lambda: f"nvml:{RANK}",
    "error": StepMeter,
}


def measure(name: str) -> dict[str, Any]:
    """Train two epochs, and test."""
    meter: str | EnergyMeter = METERS[name]()
    callback, net, data, lines = ZeusEnergyCallback(meter), Tested(), TestedData(), Lines()
    others = [Raise(ZeroDivisionError("mine"))] if name == "error" else []
    runner = trainer(callback, *others, max_epochs=2, strategy="ddp", devices=2)
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    log.addHandler(lines)
    tested, error = [], None
    host = f"node-{RANK}" if name == "two-nodes" else run_meter._host()
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        patch.object(run_meter, "_host", lambda: host),
    ):
        try:
            runner.fit(net, data)
            logged = {key: float(value) for key, value in runner.callback_metrics.items()}
            spent = [callback.spent.energy_j, callback.spent.time_s]
            if name != "broken":
                tested = runner.test(net, data, verbose=False)
        except ZeroDivisionError as caught:
            error, logged, spent = str(caught), {}, []
    log.removeHandler(lines)
    return {
        "lines": lines.kept,
        "warnings": [str(warning.message) for warning in warned],
        "logged": logged,
        "spent": spent,
        "tested": tested,
        "error": error,
    }


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        name = argument.partition("=")[0]
        (FOLDER / f"{name}.{RANK}.json").write_text(json.dumps(measure(name)))
