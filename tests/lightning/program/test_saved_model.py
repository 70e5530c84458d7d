"""A warning if a run reaches its target before it has saved its model."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import Data, Net, trainer, zeus
from service_process import ServiceProcess

WARNING = "reached its target before ModelCheckpoint saved a checkpoint"


@pytest.mark.parametrize(
    "arguments",
    [
        {"every_n_epochs": 5},
        {"every_n_train_steps": 500},
        {"train_time_interval": timedelta(hours=1)},
        {"every_n_epochs": 5, "monitor": "val_acc"},
    ],
)
def test_a_checkpoint_that_was_not_due_yet_is_a_warning(
    service: ServiceProcess, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    saves = ModelCheckpoint(tmp_path, **arguments)
    with pytest.warns(UserWarning, match=WARNING):
        trainer(zeus(service.url), saves, enable_checkpointing=True).fit(Net((0.9,)), Data())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "files"),
    [({}, 1), ({"every_n_epochs": 5, "save_last": True}, 1), ({"save_top_k": 0}, 0)],
)
def test_a_saved_model_or_one_that_the_user_does_not_want_is_none(
    service: ServiceProcess, tmp_path: Path, arguments: dict[str, Any], files: int
) -> None:
    saves = ModelCheckpoint(tmp_path, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(zeus(service.url), saves, enable_checkpointing=True).fit(Net((0.9,)), Data())
    assert len(list(tmp_path.iterdir())) == files
    assert not [each for each in caught if "checkpoint" in str(each.message).lower()]
