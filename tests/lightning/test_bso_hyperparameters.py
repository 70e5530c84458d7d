"""Loggers' hyperparameters show what training uses, and the program's own."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, Logger
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess
from torch.optim import SGD


class Saved(Net):
    """Has hyperparameters, and an optimizer of two rates."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__((0.9,))
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        bias = {"params": self.layer.bias, "lr": 0.3}
        return SGD([{"params": self.layer.weight}, bias], lr=self.hparams.lr)


class SavedData(Data):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__(batch_size)
        self.save_hyperparameters()


class Calls(Logger):
    """Records what is logged; refuses it, as MLflow does in a run that it has seen, if told so."""

    name, version = "calls", 0

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        self.refuses = refuses
        self.calls: list[dict[str, Any]] = []

    def log_hyperparams(self, params: Any, *args: Any, **arguments: Any) -> None:
        if self.refuses and "zeus/batch_size" in params:
            raise ValueError("Changing param values is not allowed")
        self.calls.append(dict(params))

    def log_metrics(self, *args: Any, **arguments: Any) -> None:
        pass


def test_the_first_call_of_a_logger_has_all_of_them(service: ServiceProcess) -> None:
    job, logger = new_job(), Calls()
    for logs in (False, logger):
        callback = zeus(service.url, job_id=job, lr_scaling="linear")
        trainer(callback, logger=logs).fit(Saved(), SavedData())
    own = {"lr": 0.1, "batch_size": 8}
    assert logger.calls[0] == {**own, "zeus/batch_size": 4, "zeus/lr": "0.05, 0.15"}
    assert logger.calls[1:] == [own]  # Lightning's


def test_they_reach_the_file_of_a_csv_logger_beside_one_that_refuses_them(
    service: ServiceProcess, tmp_path: Path
) -> None:
    callback, logger = zeus(service.url), CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="Calls did not log hyperparameters: Changing param"):
        trainer(callback, logger=[Calls(refuses=True), logger]).fit(Net((0.9,)), Data())
    values = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())
    assert values == {"zeus/batch_size": 8, "zeus/lr": 0.01}
    assert callback.outcome == "converged"


def test_a_trainer_that_logs_no_hyperparameters_logs_none(service: ServiceProcess) -> None:
    logger = Calls()
    runner = trainer(zeus(service.url), logger=logger, enable_autolog_hparams=False)
    runner.fit(Saved(), SavedData())
    assert logger.calls == []
