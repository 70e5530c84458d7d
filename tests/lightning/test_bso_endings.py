"""However a run ends, its trial ends once with the right outcome, and nobody is held up."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder
from programs import Data, Net, Raise, StepMeter, Steps, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusConfigError, ZeusMeterError, ZeusTrialFailed

CHILD = Path(__file__).with_name("train_until_signalled.py")


class AfterValidation(Callback):
    """Calls something at the end of some validations, counted from 1."""

    def __init__(self, **calls: Any) -> None:
        self.calls = calls
        self.count = 0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.count += 1
            self.calls.get(f"after_{self.count}", lambda: None)()


def a_silent_server(port: int) -> socket.socket:
    """Accepts connections and says nothing."""
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:  # a killed worker still holds the port
            time.sleep(0.01)


class Speechless(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ZeroDivisionError("mine"), "errored"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ..."), "out_of_memory"),
        (SystemExit(3), "interrupted"),
        (RuntimeError(ValueError("wrapped")), "errored"),
        (RuntimeError("a NUL \0 and half a pair \ud800"), "errored"),
        (Speechless(), "errored"),
    ],
)
def test_an_exception_ends_the_trial_and_comes_through_unchanged(
    service: ServiceProcess, error: BaseException, outcome: str
) -> None:
    callback = zeus(service.url, batch_sizes=[8, 16], default_batch_size=16)
    data = Data(batch_size=8)
    with pytest.raises(type(error)) as raised:
        trainer(callback, Raise(error)).fit(Net(), data)
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert callback.outcome == outcome
    (trial,) = trials(service.url, callback.job.job_id)
    assert trial["outcome"] == outcome
    assert data.batch_size == 8


def test_a_signal_ends_the_trial_as_interrupted(service: ServiceProcess) -> None:
    def start(job: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(CHILD), service.url, job],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    children = {number: start(f"signal-{number}") for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, child in children.items():
            assert child.stdout is not None
            assert child.stdout.readline() == b"training\n"
            child.send_signal(number)
            child.wait(timeout=30)
            assert outcomes(service.url, f"signal-{number}") == ["interrupted"]
    finally:
        for child in children.values():
            child.kill()
            child.communicate()


@pytest.mark.parametrize("silent", [False, True])
def test_after_an_exception_a_service_that_is_gone_holds_nobody_up(
    own_service: ServiceProcess, silent: bool
) -> None:
    class KillAndRaise(Raise):
        def on_train_batch_end(self, *args: Any) -> None:
            own_service.kill()
            self.server = a_silent_server(own_service.port) if silent else None
            self.began = time.monotonic()
            super().on_train_batch_end()

    error = ZeroDivisionError("mine")
    kill = KillAndRaise(error)
    with pytest.raises(ZeroDivisionError) as raised:
        trainer(zeus(own_service.url), kill).fit(Net(), Data())
    assert time.monotonic() - kill.began < 2
    assert raised.value is error
    if kill.server is not None:
        kill.server.close()


@pytest.mark.parametrize("metric", [math.nan, math.inf, 1e32])
def test_a_metric_that_is_not_finite_or_beyond_all_bounds_gives_the_batch_size_up(
    service: ServiceProcess, metric: float
) -> None:
    callback, steps = zeus(service.url), Steps()
    with pytest.raises(ZeusTrialFailed, match=re.escape(f"the metric is {metric} after 2")):
        trainer(callback, steps).fit(Net((0.1, metric)), Data())
    assert steps.count == 2 * 8
    assert outcomes(service.url, callback.job.job_id) == ["diverged"]


def test_another_callback_stopping_the_run_short_of_the_target_gives_the_batch_size_up(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url)
    stop = EarlyStopping("val_acc", mode="max", patience=1)
    with pytest.raises(ZeusTrialFailed, match="another callback stopped it, short of the target"):
        trainer(callback, stop).fit(Net((0.1,)), Data())
    assert outcomes(service.url, callback.job.job_id) == ["not_converged"]


@pytest.mark.parametrize(
    "arguments", [{"max_steps": 20}, {"max_epochs": 3, "check_val_every_n_epoch": 2}]
)
def test_training_that_ends_without_a_validation_gives_the_batch_size_up(
    service: ServiceProcess, arguments: dict[str, Any]
) -> None:
    callback = zeus(service.url)
    with pytest.raises(ZeusTrialFailed, match="not_converged"):
        trainer(callback, **arguments).fit(Net((0.1,)), Data())
    assert outcomes(service.url, callback.job.job_id) == ["not_converged"]


def test_a_start_interrupted_before_its_answer_is_taken_back(service: ServiceProcess) -> None:
    interrupted = threading.Event()

    class InterruptAtStart(BaseHTTPRequestHandler):
        """Passes requests on to the service, and presses Ctrl-C before the start's answer."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = requests.post(service.url + self.path, body, headers=self.headers, timeout=5)
            if self.path.endswith("/trials") and not interrupted.is_set():
                interrupted.set()
                signal.raise_signal(signal.SIGINT)
                time.sleep(1)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = requests.patch(service.url + self.path, body, headers=self.headers, timeout=5)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    job = new_job()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
    with ThreadingHTTPServer(("127.0.0.1", 0), InterruptAtStart) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        callback = zeus(f"http://127.0.0.1:{proxy.server_port}", job_id=job)
        try:
            with pytest.raises(SystemExit):  # what Lightning makes of Ctrl-C
                trainer(callback).fit(Net(), Data())
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores it now
            proxy.shutdown()
    assert outcomes(service.url, job) == ["withdrawn"]


def test_max_time_interrupts_the_trial_and_raises_nothing(service: ServiceProcess) -> None:
    callback = zeus(service.url, max_epochs=10**6)
    with pytest.warns(UserWarning, match="interrupted: max_time was reached after"):
        trainer(callback, max_time={"milliseconds": 300}, max_epochs=-1).fit(Net((0.1,)), Data())
    assert outcomes(service.url, callback.job.job_id) == ["interrupted"]


def test_a_service_that_comes_back_gets_the_reports_it_missed_in_order(
    own_service: ServiceProcess, recwarn: pytest.WarningsRecorder
) -> None:
    pause = AfterValidation(after_1=own_service.kill, after_3=own_service.start)
    callback = zeus(own_service.url)
    warnings.simplefilter("always")
    trainer(pause, callback).fit(Net((0.1, 0.2, 0.3, 0.9)), Data())
    assert callback.outcome == "converged"
    with sqlite3.connect(own_service.database_url.removeprefix("sqlite:///")) as database:
        reports = database.execute("SELECT sequence, metric FROM reports ORDER BY rowid").fetchall()
    assert reports == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9)]
    (trial,) = trials(own_service.url, callback.job.job_id)
    assert trial["outcome"] == "converged"
    assert trial["cost"] == pytest.approx(callback.cost)
    assert callback.report.sequence == 4
    kept = [str(w.message) for w in recwarn if "reports are kept for later" in str(w.message)]
    assert len(kept) == 1
    assert own_service.url in kept[0]


def test_a_target_reached_while_the_service_was_away_counts_when_it_is_back(
    own_service: ServiceProcess,
) -> None:
    class BackAtTheEnd(AfterValidation):
        def on_train_end(self, *args: Any) -> None:
            own_service.start()

    pause = BackAtTheEnd(after_1=own_service.kill)
    callback, steps = zeus(own_service.url), Steps()
    trainer(pause, callback, steps, max_epochs=9).fit(Net((0.1, 0.9)), Data())
    (trial,) = trials(own_service.url, callback.job.job_id)
    assert trial["outcome"] == callback.outcome == "converged"
    assert trial["cost"] == pytest.approx(0.5 * 12 + 0.5 * 10 * 4)  # of the second validation
    assert callback.cost == pytest.approx(trial["cost"])
    assert steps.count == 2 * 8


def test_a_target_reached_ends_training_also_when_the_service_stays_away(
    own_service: ServiceProcess,
) -> None:
    callback, steps = zeus(own_service.url), Steps()
    stopped = AfterValidation(after_1=own_service.kill)
    with pytest.warns(UserWarning, match="ended as lost: the target is reached, and the service"):
        trainer(stopped, callback, steps, max_epochs=9).fit(Net((0.1, 0.9)), Data())
    assert steps.count == 2 * 8


def test_an_end_that_cannot_be_told_is_no_verdict(own_service: ServiceProcess) -> None:
    callback = zeus(own_service.url)
    stop = EarlyStopping("val_acc", mode="max", patience=1)
    end = AfterValidation(after_2=own_service.kill)
    with pytest.warns(UserWarning, match="ended as lost"):
        trainer(callback, stop, end).fit(Net((0.1,)), Data())


@pytest.mark.parametrize("arguments", [{"check_val_every_n_epoch": 9}, {"max_steps": 3}])
def test_a_run_without_a_validation_is_told_and_teaches_nothing(
    service: ServiceProcess, arguments: dict[str, Any]
) -> None:
    callback = zeus(service.url)
    with pytest.raises(ZeusConfigError, match="without a validation, so 'val_acc' was never seen"):
        trainer(callback, **arguments).fit(Net(), Data())
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]


def test_a_finder_of_lightnings_beside_it_is_no_resumed_run(
    service: ServiceProcess, tmp_path: Path
) -> None:
    net = Net()
    net.lr = 0.01
    finder = LearningRateFinder(num_training_steps=5)
    callback = zeus(service.url)
    trainer(callback, finder, default_root_dir=tmp_path).fit(net, Data())
    assert outcomes(service.url, callback.job.job_id) == ["converged"]


def test_a_service_that_stays_away_stops_nobody(own_service: ServiceProcess) -> None:
    callback, steps = zeus(own_service.url), Steps()
    with pytest.warns(
        UserWarning,
        match="ended as lost: training ended, short of the target",
    ):
        trainer(AfterValidation(after_1=own_service.kill), callback, steps, max_epochs=3).fit(
            Net((0.1,)), Data()
        )
    assert steps.count == 3 * 8
    assert callback.outcome == "lost"


def test_a_report_the_service_refuses_stops_nobody(service: ServiceProcess) -> None:
    def withdraw() -> None:
        url = f"{service.url}/api/v1/jobs/{callback.job.job_id}/trials/1"
        body = {"outcome": "withdrawn", "reason": "by hand"}
        assert requests.patch(url, json=body, timeout=5).ok

    callback, steps = zeus(service.url), Steps()
    with pytest.warns(UserWarning, match="training goes on, but this run teaches nothing"):
        trainer(AfterValidation(after_2=withdraw), callback, steps).fit(Net((0.1,)), Data())
    assert steps.count == 5 * 8
    assert callback.outcome == "errored"
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]


def test_a_meter_that_fails_in_mid_training_stops_nobody(service: ServiceProcess) -> None:
    class Dying(StepMeter):
        def read(self) -> Any:
            reading = super().read()
            if reading.time_s > 4:
                raise ZeusMeterError("GPU 0 is lost")
            return reading

    callback, steps = zeus(service.url, meter=Dying()), Steps()
    with pytest.warns(UserWarning, match="GPU 0 is lost"):
        trainer(callback, steps).fit(Net((0.1,)), Data())
    assert steps.count == 5 * 8
    assert outcomes(service.url, callback.job.job_id) == ["errored"]


def test_the_next_run_goes_on_after_each_ending(service: ServiceProcess) -> None:
    job, data = new_job(), Data()
    with pytest.raises(ZeroDivisionError):
        trainer(zeus(service.url, job_id=job), Raise(ZeroDivisionError())).fit(Net(), data)
    callback = zeus(service.url, job_id=job)
    trainer(callback).fit(Net(), data)
    assert callback.trial.batch_size == 8  # an error says nothing about a batch size
    assert outcomes(service.url, job) == ["errored", "converged"]


def test_pytorch_lightnings_own_trainer_takes_the_callback_in_a_list(
    service: ServiceProcess,
) -> None:
    import pytorch_lightning as pl

    class PlNet(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        training_step = lambda self, batch, index: self.layer(batch[0]).pow(2).mean()  # noqa: E731
        validation_step = lambda self, batch, index: self.log("val_acc", 0.9)  # noqa: E731
        configure_optimizers = Net.configure_optimizers

    class PlData(pl.LightningDataModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 8
            self.samples = Data().samples

        train_dataloader = Data.train_dataloader
        val_dataloader = Data.val_dataloader

    callback = zeus(service.url)
    runner = pl.Trainer(
        callbacks=[callback],
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    runner.fit(PlNet(), PlData())
    assert callback.outcome == "converged"
