"""The private parts of Lightning that the callbacks use; `check_internals` verifies each of them.

Use a public method where Lightning has one. A new part stands here as a function of its own, and in
`_parts`, so that a release of Lightning without it is an error before the first training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader

from zeus_lightning.errors import ZeusConfigError

TRIED_WITH = "2.6"
"""The Lightning release that these parts were tried with, and to which setup.cfg is limited."""


def check_internals(trainer: Trainer) -> None:
    """Raise a `ZeusConfigError` if the installed Lightning lacks a part; for `setup`."""
    for owner, name in _parts(trainer):
        if not hasattr(owner, name):
            packages = [each.__module__.partition(".")[0] for each in type(trainer).__mro__]
            cls = owner if isinstance(owner, type) else type(owner)
            package = "pytorch-lightning" if "pytorch_lightning" in packages else "lightning"
            raise ZeusConfigError(
                f"{package} {version(package)} has no {cls.__name__}.{name}, which this "
                f"callback uses; install {package}=={TRIED_WITH}.*, the tested release"
            )


def _parts(trainer: Trainer) -> Iterator[tuple[Any, str]]:
    """Yield what has each private part, and the part's name."""
    fit_loop: Any = trainer.fit_loop
    yield fit_loop, "_data_source"
    yield fit_loop._data_source, "instance"
    yield fit_loop._data_source, "is_module"
    yield fit_loop, "_combined_loader"
    yield fit_loop.epoch_loop, "_batches_that_stepped"
    yield fit_loop.epoch_loop, "_results"
    yield fit_loop.epoch_loop.val_loop, "_results"
    yield trainer.profiler, "describe"  # type: ignore[attr-defined]
    yield CombinedLoader, "flattened"  # of an instance, it would be computed
    launcher = trainer.strategy.launcher
    if any("MultiProcessing" in each.__name__ for each in type(launcher).__mro__):
        yield launcher, "_start_method"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        names = [each.__name__ for each in type(callback).__mro__ if _is_of_lightning(each)]
        if "LearningRateFinder" in names or "BatchSizeFinder" in names:
            yield callback, "_early_exit"


def _is_of_lightning(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def is_tuning(trainer: Trainer) -> bool:
    """Whether Lightning's Tuner runs this fit, and ends it before training."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return any(getattr(each, "_early_exit", False) for each in callbacks)


def starts_ranks_itself(trainer: Trainer) -> bool:
    """Whether this process starts the training processes, as ddp_spawn and ddp_fork do."""
    return hasattr(trainer.strategy.launcher, "_start_method")


def passed_source(trainer: Trainer) -> Any:
    """What keeps the train dataloaders passed to `fit` as its `instance`; None if none were."""
    source = trainer.fit_loop._data_source
    return None if source.is_module() else source


def drop_dataloaders(trainer: Trainer) -> None:
    """Have Lightning build the train dataloaders again."""
    trainer.fit_loop._combined_loader = None


def name_of_batch_metric(trainer: Trainer, metric: str) -> str | None:
    """The name by which training logs a metric for each batch; None if it is another metric.

    If validation also logs it, its value is validation's, which replaces the last batch's.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    for log in (each.meta for each in epoch_loop.val_loop._results.result_metrics):
        if metric in (log.name, log.forked_name(on_step=False)):
            return None
    for log in (each.meta for each in epoch_loop._results.result_metrics):
        if log.on_step and metric == log.forked_name(on_step=True):
            return str(log.name)
    return None


def train_loaders(trainer: Trainer) -> list[Any]:
    """The train dataloaders that Lightning has built; none before the first was built."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else combined.flattened


def step_of_logs(trainer: Trainer) -> Callable[[], int]:
    """A function that returns the step under which Lightning logs a metric now."""
    return partial(attrgetter("_batches_that_stepped"), trainer.fit_loop.epoch_loop)


def after_fit(trainer: Trainer, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` as the last step of `fit`, after all `teardown` hooks and the loggers' end.

    There Lightning calls `profiler.describe()`; test_late_error.py fails if it changes the order.

    Returns:
        A function that undoes this.
    """
    profiler: Any = trainer.profiler  # type: ignore[attr-defined]
    describe = profiler.describe

    def describe_and_act() -> None:
        describe()
        action()

    def undo() -> None:
        profiler.describe = describe

    profiler.describe = describe_and_act
    return undo
