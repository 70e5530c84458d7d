"""Likely mistakes in the monitored metric's name, mode and target."""

from __future__ import annotations

import warnings

import pytest
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning.program.metric import mode_of_name


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (
            "min",
            "val_loss val/loss valLoss Loss val_loss_epoch val_loss/dataloader_idx_0 top1_error "
            "error_rate MeanSquaredError val-perplexity ppl val_RMSE nll val_kl valBCE val/nll "
            "bce mse wer CrossEntropyLoss kl_div val.ce val_top_1_error",
        ),
        (
            "max",
            "val_acc val/accuracy Accuracy val_acc_top_1 acc5 acc@1 F1Score val_f1 BinaryAUROC "
            "val_auc MulticlassRecall mIoU bleu auroc iou val/mAP50 r2_score",
        ),
        (
            None,
            "score val_pck_0.15 reward neg_loss negative_mse accuracy_loss error_reduction 1-acc "
            "-loss glossary faccade negloss policy_entropy device top_k balance valacc",
        ),
    ],
)
def test_a_name_shows_the_mode_only_where_there_is_no_doubt(mode: str | None, names: str) -> None:
    assert {name: mode_of_name(name) for name in names.split()} == dict.fromkeys(
        names.split(), mode
    )


@pytest.mark.parametrize(("target", "told"), [(0.8, [True, False]), (95, [False, False])])
def test_a_target_that_the_jobs_first_validation_reaches_is_a_warning(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder, target: float, told: list[bool]
) -> None:
    job, warned = new_job(), []
    warnings.simplefilter("always")  # also a text that has been warned of already
    for _ in range(2):
        recwarn.clear()
        callback = zeus(service.url, job_id=job, target_metric=target, raise_on_failure=False)
        trainer(callback).fit(Net((85.0,)), Data())
        texts = [str(each.message) for each in recwarn]
        warned.append(any("already reaches the target: val_acc is 85" in text for text in texts))
    assert warned == told
