"""The learning rate that goes with a batch size."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Trainer
from programs import Data, Net
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.lr_scaling import (
    LRScaling,
    base_rates,
    find_rates,
    lr_factor,
    scale_groups,
)

SIZES = st.integers(1, 10**6)


def test_linear_and_square_root_rules() -> None:
    assert lr_factor("linear", 256, 64) == 4.0
    assert lr_factor("sqrt", 256, 64) == 2.0


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
@given(default=SIZES, there=SIZES)
def test_the_default_is_unscaled_and_the_way_back_gives_it_again(
    rule: LRScaling, default: int, there: int
) -> None:
    assert lr_factor(rule, default, default) == 1.0
    there_and_back = lr_factor(rule, there, default) * lr_factor(rule, default, there)
    assert there_and_back == pytest.approx(1.0)


class Program(Net):
    """Has hyperparameters, and no Trainer."""

    trainer = None

    def __init__(self, **hparams: Any) -> None:
        super().__init__()
        self.save_hyperparameters(hparams)


@pytest.mark.parametrize("lr", [0.1, np.float32(0.1), np.float64(0.1)])
def test_a_rate_may_be_numpys(lr: float) -> None:
    module = Program()
    module.lr = lr
    ((holder, name, found),) = find_rates(module)
    assert (holder, name) == (module, "lr")
    assert found == lr


def test_of_what_has_a_rates_name_at_least_one_must_be_a_positive_number() -> None:
    module = Program(lr=None, learning_rate=0.02)
    assert find_rates(module) == [(module.hparams, "learning_rate", 0.02)]
    with pytest.raises(ZeusConfigError, match=r"hparams\.lr is None; lr_scaling needs a positive"):
        find_rates(Program(lr=None, learning_rate=0))
    datamodule = Data()
    datamodule.lr = 0
    of_datamodule = Net()
    of_datamodule.trainer = Trainer(barebones=True)
    of_datamodule.trainer.datamodule = datamodule
    with pytest.raises(ZeusConfigError, match=r"Data\.lr is 0; lr_scaling needs a positive"):
        find_rates(of_datamodule)


def sequence(optimizer: Optimizer) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return lr_scheduler.SequentialLR(
        optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 10)], milestones=[5]
    )


def chain(optimizer: Optimizer) -> Any:
    warmup = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=4)
    return lr_scheduler.ChainedScheduler([warmup, lr_scheduler.ExponentialLR(optimizer, 0.9)])


SCHEDULES: dict[str, Any] = {
    "none": lambda optimizer, rate: None,
    "lambda": lambda optimizer, rate: lr_scheduler.LambdaLR(optimizer, lambda n: min(1, n / 5)),
    "multiplied": lambda optimizer, rate: lr_scheduler.MultiplicativeLR(optimizer, lambda n: 0.9),
    "steps": lambda optimizer, rate: lr_scheduler.StepLR(optimizer, 3),
    "multi-steps": lambda optimizer, rate: lr_scheduler.MultiStepLR(optimizer, [2, 5]),
    "exponential": lambda optimizer, rate: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "polynomial": lambda optimizer, rate: lr_scheduler.PolynomialLR(optimizer, 10),
    "cosine": lambda optimizer, rate: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "restarts": lambda optimizer, rate: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "one-cycle": lambda optimizer, rate: lr_scheduler.OneCycleLR(optimizer, rate, total_steps=20),
    "cyclic": lambda optimizer, rate: lr_scheduler.CyclicLR(optimizer, rate / 9, rate),
    "plateau": lambda optimizer, rate: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    "sequence": lambda optimizer, rate: sequence(optimizer),
    "chain": lambda optimizer, rate: chain(optimizer),
}


def built(schedule: str, rate: float, tensor: bool) -> tuple[Optimizer, list[Any]]:
    """An optimizer with groups of two rates, and its scheduler."""
    one, two = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    lr: Any = torch.tensor(rate) if tensor else rate
    groups = [{"params": [one]}, {"params": [two], "lr": lr / 4}]
    optimizer = AdamW(groups, lr=lr) if tensor else SGD(groups, lr=lr, momentum=0.9)
    scheduler = SCHEDULES[schedule](optimizer, rate)
    return optimizer, [scheduler] if scheduler else []


def rates(optimizer: Optimizer, schedulers: list[Any]) -> list[list[float]]:
    """The rates in each of 15 steps."""
    seen = []
    for _ in range(15):
        seen.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        for scheduler in schedulers:
            plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
            scheduler.step(1.0) if plateau else scheduler.step()
    return seen


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scaled_groups_run_through_the_schedule_that_a_scaled_rate_would(
    schedule: str, tensor: bool
) -> None:
    optimizer, schedulers = built(schedule, 0.1, tensor)
    scale_groups([optimizer], schedulers, [0.5, 0.5])
    seen, expected = rates(optimizer, schedulers), rates(*built(schedule, 0.05, tensor))
    for now, wanted in zip(seen, expected, strict=True):
        assert now == pytest.approx(wanted)
    if not tensor:  # torch's schedulers change that one in place
        assert optimizer.defaults["lr"] == pytest.approx(0.05)
    if schedule not in ("none", "chain"):
        assert any(one != two for one, two in pairwise(seen))


class Wrapper(Optimizer):
    """Shares its groups with the optimizer that it wraps, as sharpness-aware minimization does."""

    def __init__(self, wrapped: Optimizer) -> None:
        super().__init__(wrapped.param_groups, {"lr": 1.0})
        self.param_groups = wrapped.param_groups


def test_a_schedule_of_a_wrapped_optimizer_is_scaled_group_by_group() -> None:
    wrapped, schedulers = built("lambda", 0.1, False)
    scale_groups([Wrapper(wrapped)], schedulers, [0.5, 1.0])
    seen, unscaled = rates(wrapped, schedulers), rates(*built("lambda", 0.1, False))
    for now, before in zip(seen, unscaled, strict=True):
        assert now == pytest.approx([before[0] * 0.5, before[1]])


class Foreign:
    """A scheduler that is not derived from torch's."""


def test_a_scheduler_of_another_kind_is_an_error_that_changes_nothing() -> None:
    optimizer, _ = built("none", 0.1, False)
    with pytest.raises(ZeusConfigError, match="lr_scaling cannot change it in Foreign"):
        scale_groups([optimizer], [Foreign()], [0.5, 0.5])
    assert base_rates([optimizer]) == [0.1, 0.025]
