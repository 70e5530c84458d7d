"""A run whose trial failed ends as any other, and raises its error after everything else."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from programs import Data, Net, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusConfigError, ZeusTrialFailed

HOOKS = ("on_train_end", "on_fit_end", "teardown", "on_exception")


def recorder(base: type, seen: list[str], name: str, *arguments: Any) -> Any:
    """An object of a class that notes the calls of its hooks."""

    def note(hook: str) -> Any:
        return lambda self, *args, **kwargs: seen.append(f"{name}.{hook}")

    return type(name, (base,), {hook: note(hook) for hook in HOOKS})(*arguments)


class Logger(CSVLogger):
    def __init__(self, folder: Path, seen: list[str]) -> None:
        super().__init__(folder)
        self.seen = seen

    def finalize(self, status: str) -> None:
        self.seen.append(f"logger {status}")
        super().finalize(status)


class BreaksInTeardown(Callback):
    def teardown(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("in teardown")


class Program:
    """A program of two epochs, and the hooks that were called as it ended."""

    def __init__(self, url: str, folder: Path, *others: Callback, **arguments: Any) -> None:
        self.seen: list[str] = []
        self.callback = zeus(url)
        callbacks = [
            recorder(Callback, self.seen, "A"),
            self.callback,
            *others,
            recorder(Callback, self.seen, "B"),
            OnExceptionCheckpoint(folder / "on_exception"),
            ModelCheckpoint(folder / "saved", save_on_exception=True, every_n_epochs=100),
        ]
        self.trainer = trainer(
            *callbacks,
            enable_checkpointing=True,
            logger=Logger(folder, self.seen),
            **({"max_epochs": 2} | arguments),
        )
        self.order = list(self.trainer.callbacks)

    def fit(self, val_acc: float) -> list[str]:
        self.seen.clear()
        net = recorder(Net, self.seen, "module", (val_acc,))
        self.trainer.fit(net, recorder(Data, self.seen, "data"))
        return self.seen


def test_everything_is_torn_down_as_after_a_run_that_converged(
    service: ServiceProcess, tmp_path: Path
) -> None:
    in_order = list(Program(service.url, tmp_path).fit(0.9))
    assert in_order[-2:] == ["module.teardown", "logger success"]
    program = Program(service.url, tmp_path)
    with pytest.raises(ZeusTrialFailed) as raised:
        program.fit(0.1)
    assert program.seen == in_order
    without_validation = Program(service.url, tmp_path, check_val_every_n_epoch=3)
    with pytest.raises(ZeusConfigError, match="without a validation"):
        without_validation.fit(0.1)
    assert without_validation.seen == in_order
    assert raised.value.__context__ is None
    assert program.trainer.callbacks == program.order
    assert program.trainer.state.finished
    assert not program.trainer.training
    assert program.callback.outcome == "not_converged"
    assert not list(tmp_path.rglob("*.ckpt"))


def test_its_message_is_printed_once_under_few_frames(
    service: ServiceProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ZeusTrialFailed) as raised:
        Program(service.url, tmp_path).fit(0.1)
    assert "ended as not_converged" not in caplog.text
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-2:] == ["_call_callback_hooks", "on_exception"]
    assert len([name for name in frames if name != "fit"]) <= 5


def test_an_error_of_a_later_teardown_comes_first_and_nothing_stays_behind(
    service: ServiceProcess, tmp_path: Path
) -> None:
    program = Program(service.url, tmp_path, BreaksInTeardown())
    describe = program.trainer.profiler.describe
    with pytest.raises(OSError, match="in teardown"):
        program.fit(0.1)
    assert program.seen[-1] == "logger failed"
    assert program.trainer.callbacks == program.order
    assert program.trainer.profiler.describe == describe
    assert program.callback.outcome == "not_converged"
