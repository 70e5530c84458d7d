"""Loggers' hyperparameters show what was trained with, beside the program's own."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, Logger
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess
from torch.optim import SGD


class Saved(Net):
    """Has hyperparameters, and an optimizer of two rates if told so."""

    def __init__(self, lr: float = 0.1, groups: bool = False) -> None:
        super().__init__((0.9,))
        self.save_hyperparameters()
        self.lr = lr

    def configure_optimizers(self) -> Any:
        bias = {"params": self.layer.bias} | ({"lr": 0.3} if self.hparams.groups else {})
        return SGD([{"params": self.layer.weight}, bias], lr=self.lr)


class SavedData(Data):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__(batch_size)
        self.save_hyperparameters()


class Calls(Logger):
    """Records what is logged; refuses the values of a second trial, as MLflow does, if told so."""

    name, version = "calls", 0

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        self.refuses = refuses
        self.calls: list[dict[str, Any]] = []

    def log_hyperparams(self, params: Any, *args: Any, **arguments: Any) -> None:
        if self.refuses and params.get("zeus/batch_size") == 4:
            raise ValueError("Changing param values is not allowed")
        self.calls.append(dict(params))

    def log_metrics(self, *args: Any, **arguments: Any) -> None:
        pass


@pytest.mark.parametrize(("groups", "lr"), [(False, 0.05), (True, "0.05, 0.15")])
def test_the_first_call_of_a_logger_has_all_of_them(
    service: ServiceProcess, groups: bool, lr: Any
) -> None:
    job, logger = new_job(), Calls()
    for logs in (False, logger):
        callback = zeus(service.url, job_id=job, lr_scaling="linear")
        trainer(callback, logger=logs).fit(Saved(groups=groups), SavedData())
    own = {"lr": 0.1, "batch_size": 8, "groups": groups}
    assert logger.calls[0] == {**own, "zeus/batch_size": 4, "zeus/lr": lr}
    assert logger.calls[1:] == [own]  # Lightning's


def test_they_reach_the_file_of_a_csv_logger(service: ServiceProcess, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer(zeus(service.url), logger=logger).fit(Net((0.9,)), Data())
    values = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())
    assert values == {"zeus/batch_size": 8, "zeus/lr": 0.01}


def test_a_logger_that_refuses_them_does_not_stop_the_run(service: ServiceProcess) -> None:
    job, logger = new_job(), Calls(refuses=True)
    trainer(zeus(service.url, job_id=job), logger=logger).fit(Net((0.9,)), Data())
    callback = zeus(service.url, job_id=job)
    with pytest.warns(UserWarning, match="Calls does not log hyperparameters: Changing param"):
        trainer(callback, logger=logger).fit(Net((0.9,)), Data())
    assert callback.outcome == "converged"


def test_a_trainer_that_logs_no_hyperparameters_logs_none(service: ServiceProcess) -> None:
    logger = Calls()
    runner = trainer(zeus(service.url), logger=logger, enable_autolog_hparams=False)
    runner.fit(Saved(), SavedData())
    assert logger.calls == []
