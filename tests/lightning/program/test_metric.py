"""The value of the monitored metric, and likely mistakes in its name, mode and target."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from programs import Data, Net, Raise, TrainAcc, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed
from zeus_lightning.program.metric import (
    mode_of_name,
    out_of_reach,
    reached_at_once,
    shortest_decimal,
)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.1, 0.1),
        (np.float32(0.1), 0.1),
        (np.array([0.1], np.float32), 0.1),
        (torch.tensor(0.95), 0.95),  # 0.949999988... in float32
        (torch.tensor(3), 3.0),
        (torch.tensor(0.95, dtype=torch.bfloat16), 0.94921875),
        (torch.tensor(-math.inf), -math.inf),
    ],
)
def test_a_number_is_its_shortest_decimal(number: Any, value: float) -> None:
    assert shortest_decimal(number) == value


@pytest.mark.parametrize("val_check_interval", [1.0, 0.5])
def test_a_metric_of_training_is_reported_as_its_epochs_end(
    service: ServiceProcess, val_check_interval: float
) -> None:
    callback = zeus(service.url, monitor="train_acc")
    runner = trainer(callback, val_check_interval=val_check_interval)
    runner.fit(TrainAcc((0.3, 0.4, 0.85)), Data())
    assert callback.outcome == "converged"
    assert (callback.last_report.sequence, callback.last_report.epoch) == (3, 3)
    assert callback.last_report.metric == pytest.approx(0.85)
    assert runner.current_epoch == 3


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (
            "min",
            "val_loss val/loss valLoss Loss val_loss_epoch val_loss/dataloader_idx_0 top1_error "
            "error_rate MeanSquaredError val-perplexity ppl val_RMSE nll valloss val_kl valBCE "
            "val_cross_entropy val/nll bce mse wer CrossEntropyLoss kl_div val.ce val_top_1_error",
        ),
        (
            "max",
            "val_acc val/accuracy Accuracy val_acc_top_1 acc5 acc@1 F1Score val_f1 BinaryAUROC "
            "val_auc MulticlassRecall mIoU valacc val_top1 val_top_5 bleu auroc iou val/mAP50",
        ),
        (
            None,
            "score val_pck_0.15 reward neg_loss negative_mse accuracy_loss error_reduction 1-acc "
            "-loss glossary faccade negloss policy_entropy device top_k balance",
        ),
    ],
)
def test_a_name_shows_the_mode_only_where_there_is_no_doubt(mode: str | None, names: str) -> None:
    assert {name: mode_of_name(name) for name in names.split()} == dict.fromkeys(
        names.split(), mode
    )


@pytest.mark.parametrize(
    ("monitor", "mode", "warns"),
    [
        ("val_loss", "max", True),
        ("val_acc", "min", True),
        ("val_acc", "max", False),
        ("score", "min", False),
    ],
)
def test_the_constructor_warns_once_of_a_name_that_contradicts_the_mode(
    recwarn: pytest.WarningsRecorder, monitor: str, mode: str, warns: bool
) -> None:
    ZeusBSOCallback(target_metric=0.05, monitor=monitor, mode=mode)
    verb, bound, other = ("fall", "least", "min") if mode == "max" else ("rise", "most", "max")
    text = (
        f"zeus: mode is {mode!r}, but {monitor!r} looks like a metric that should {verb}: any "
        f"value of at {bound} 0.05 will end the training as converged; pass mode={other!r} unless "
        "you mean this"
    )
    assert [str(each.message) for each in recwarn] == [text] * warns


@pytest.mark.parametrize(
    ("monitor", "mode", "target", "metric", "advice"),
    [
        ("score", "max", 0.05, 0.53, "If it should fall, pass mode='min', with a new job_id"),
        ("score", "min", 0.9, 0.1, "If it should rise, pass mode='max', with a new job_id"),
        ("val_acc", "max", 0.95, 43.0, "If it is in percent, pass target_metric=95, with a new"),
        ("val_acc", "max", 0.9, 0.91, None),  # the task is easy
        ("val_psnr", "max", 1.0, 30.0, None),
    ],
)
def test_a_target_reached_at_once_names_the_likely_mistake(
    monitor: str, mode: str, target: float, metric: float, advice: str | None
) -> None:
    text = reached_at_once(monitor, mode, target, metric)
    assert (text is None) if advice is None else (advice in text)


@pytest.mark.parametrize(
    ("monitor", "mode", "target", "lowest", "highest", "advice"),
    [
        ("metric", "max", 95, 0.1, 0.97, "pass target_metric=0.95 and a new job_id"),
        ("val/f1", "max", 9, 0.1, 1.0, "a fraction, at most 1, pass a target below 1 and a new"),
        ("auroc", "max", 950, 0.1, 0.97, "pass a target below 1 and a new job_id"),
        ("metric", "min", -0.05, 0.0, 2.0, "if it cannot be negative"),
        ("val_acc", "max", 95, 0.1, 1.5, None),  # a percentage that has begun low
        ("val_acc", "max", 1, 0.1, 0.2, None),
        ("metric", "max", 5000, 0.0, 0.0, None),  # such as a game's score
        ("metric", "max", 10, 0.0, 0.0, None),
        ("metric", "min", -0.05, -0.01, 2.0, None),
    ],
)
def test_a_target_that_cannot_be_reached_names_the_likely_mistake(
    monitor: str, mode: str, target: float, lowest: float, highest: float, advice: str | None
) -> None:
    text = out_of_reach(monitor, mode, target, lowest, highest)
    assert (text is None) if advice is None else (advice in text)


@pytest.mark.parametrize(
    ("changes", "net"),
    [({"mode": "min", "target_metric": 0.5}, Net()), ({"target_metric": 0.8}, Net((85.0,)))],
)
def test_a_target_reached_at_once_is_a_warning_until_the_job_has_converged(
    service: ServiceProcess,
    recwarn: pytest.WarningsRecorder,
    changes: dict[str, Any],
    net: Net,
) -> None:
    job, told = new_job(), []
    warnings.simplefilter("always")  # also a text that has been warned of already
    for interruption in ([Raise(KeyboardInterrupt())], [], []):
        recwarn.clear()
        net.layer.reset_parameters()
        with suppress(SystemExit):
            trainer(zeus(service.url, job_id=job, **changes), *interruption).fit(net, Data())
        texts = [str(each.message) for each in recwarn]
        told.append(any("the first validation already reaches" in text for text in texts))
    assert outcomes(service.url, job) == ["interrupted", "converged", "converged"]
    assert told == [False, True, False]


def test_a_target_in_percent_is_a_warning_at_the_first_validation_and_in_the_error(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, target_metric=95)
    with (
        pytest.warns(
            UserWarning, match=r"target_metric is 95, but every value of val_acc"
        ) as caught,
        pytest.raises(ZeusTrialFailed, match=r"between 0.1 and 0.9: .* pass target_metric=0.95"),
    ):
        trainer(callback).fit(Net(), Data())
    assert len([each for each in caught if "every value" in str(each.message)]) == 1


@pytest.mark.parametrize(("target", "val_acc"), [(0.5, (0.9,)), (0.8, (0.1, 0.2, 0.9))])
def test_an_easy_target_and_one_that_is_reached_later_are_no_warning(
    service: ServiceProcess,
    recwarn: pytest.WarningsRecorder,
    target: float,
    val_acc: tuple[float, ...],
) -> None:
    callback = zeus(service.url, target_metric=target)
    trainer(callback).fit(Net(val_acc), Data())
    assert callback.outcome == "converged"
    assert not [each for each in recwarn if "target" in str(each.message)]
