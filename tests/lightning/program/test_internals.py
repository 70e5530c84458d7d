"""A release of Lightning without a part that the callbacks use is an error before training."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.utilities import CombinedLoader
from programs import Data, Net, trainer, zeus

from zeus_lightning import ZeusConfigError, ZeusPowerLimitCallback
from zeus_lightning.program.internals import TRIED_WITH, check_internals


def attached(**options: Any) -> Trainer:
    """A Trainer as `setup` sees it."""
    runner = trainer(LearningRateFinder(), **options)
    runner.strategy.connect(Net())
    runner.strategy._configure_launcher()
    return runner


def remove(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Remove an attribute of an object, or of the class that has it."""
    holders = [owner, *getattr(type(owner), "__mro__", ())]
    monkeypatch.delattr(next(each for each in holders if name in vars(each)), name)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("_data_source", lambda runner: runner.fit_loop),
        ("instance", lambda runner: runner.fit_loop._data_source),
        ("is_module", lambda runner: runner.fit_loop._data_source),
        ("_combined_loader", lambda runner: runner.fit_loop),
        ("_batches_that_stepped", lambda runner: runner.fit_loop.epoch_loop),
        ("_results", lambda runner: runner.fit_loop.epoch_loop),
        ("_results", lambda runner: runner.fit_loop.epoch_loop.val_loop),
        ("describe", lambda runner: runner.profiler),
        ("flattened", lambda runner: CombinedLoader([])),
        ("_start_method", lambda runner: runner.strategy.launcher),
        ("_early_exit", lambda runner: runner.callbacks[0]),
    ],
)
def test_a_missing_part_is_an_error_that_names_it_and_the_releases(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: Callable[[Trainer], Any]
) -> None:
    runner = attached(strategy="ddp_spawn", devices=2)
    remove(monkeypatch, owner(runner), name)
    message = (
        rf"^lightning {lightning.__version__} has no \w+\.{name}, .*"
        rf"install lightning=={TRIED_WITH}\.\*, the tested release"
    )
    with pytest.raises(ZeusConfigError, match=message):
        check_internals(runner)


@pytest.mark.parametrize(
    "make", [lambda: zeus("http://127.0.0.1:1"), lambda: ZeusPowerLimitCallback()]
)
def test_both_callbacks_check_before_anything_else(make: Callable[[], Callback]) -> None:
    runner = trainer(make())
    del runner.fit_loop.epoch_loop._batches_that_stepped
    with pytest.raises(ZeusConfigError, match=r"has no \w+\._batches_that_stepped"):
        runner.fit(Net(), Data())


def test_the_dependency_is_limited_to_the_release_that_was_tried() -> None:
    root = Path(__file__).parents[3]
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg")
    minor = int(TRIED_WITH.partition(".")[2])
    assert f"lightning>={TRIED_WITH},<2.{minor + 1}" in config["options"]["install_requires"]
    assert f"lightning=={TRIED_WITH}." in (root / "constraints.txt").read_text()
