"""A recurring training job finds its batch size: handwritten digits, twelve times.

Starts the service on a free port with its database under `.zeus/`, and trains a small network on
scikit-learn's digits again and again, as a nightly job would. A run that the service stops because
its batch size costs too much is launched again, as a user would do. Some control trials train with
the default batch size, to measure what it costs. When the script is run again, the job continues
with what it has learned.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import lightning as L
import requests
import torch
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from zeus_lightning import ZeusBSOCallback, ZeusError, ZeusTrialFailed
from zeus_lightning.recur.service import OwnService

JOB_ID = "quickstart-digits"
TRIES = 20  # launches of one recurrence, which is given up after them


class Digits(L.LightningDataModule):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Split the data, the same way in each run."""
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
        self.train_data, self.val_data = random_split(
            data, [0.8, 0.2], torch.Generator().manual_seed(0)
        )

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Training data in batches of the size that the callback sets."""
        return DataLoader(self.train_data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Validation data; their batch size changes nothing."""
        return DataLoader(self.val_data, batch_size=512)


class DigitsNet(L.LightningModule):
    """A small convolutional network."""

    def __init__(self, lr: float = 0.004) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the share of digits that are read right."""
        images, labels = batch
        right = self.net(images).argmax(1) == labels
        self.log("val_acc", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def train(url: str, seed: int, *, control: bool = False) -> ZeusBSOCallback:
    """One run of the job, as a user's training script would have it, or a control trial."""
    os.environ["ZEUS_CONTROL"] = str(int(control))  # as `zeus-lightning recur --compare` sets it
    L.seed_everything(seed, verbose=False)
    zeus = ZeusBSOCallback(url, target_metric=0.97, monitor="val_acc", job_id=JOB_ID, eta_knob=1.0)
    trainer = L.Trainer(
        max_epochs=100,
        callbacks=[zeus],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with suppress(ZeusTrialFailed):  # the service gave this batch size up: recur() launches again
        trainer.fit(DigitsNet(), datamodule=Digits())
    return zeus


def main() -> None:
    """Run the job's recurrences, and print what was learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=12, help="number of recurrences")
    parser.add_argument("--controls", type=int, default=4, help="number of control trials")
    parser.add_argument(
        "--folder", type=Path, default=Path(".zeus"), help="folder for the database"
    )
    options = parser.parse_args()
    if min(options.runs, options.controls) < 1:
        parser.error("--runs and --controls must be at least 1")
    torch.set_num_threads(1)  # the network is so small that more threads only wait for each other
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    console = Console()
    try:
        run_job(options.runs, options.controls, options.folder, console)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 1:  # Lightning's answer to Ctrl-C is 1
            raise
        console.print("\nStopped. Run it again: the job continues with what it has learned.")
        raise SystemExit(130) from None
    except ZeusError as error:
        raise SystemExit(error.message) from None


def run_job(runs: int, controls: int, folder: Path, console: Console) -> None:
    """Start the service, run the job's recurrences, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in [each for each in os.environ if each.startswith("ZEUS_BSO_")]:
        del os.environ[name]  # of another service: this one listens on loopback, without a token
    database = f"sqlite:///{folder.absolute() / 'quickstart.sqlite3'}"
    with OwnService(database, folder / "service.log") as service:
        url = service.url
        console.print(f"The service is at {url}, its database and log in {folder}.")
        known, measured = known_trials(url)
        console.print(
            f"A small network is trained {runs} times until it reads most handwritten digits, each "
            "time with the batch size that the service chooses, then "
            f"{max(0, controls - measured)} times with the default batch size to compare. You will "
            "see what each run costs (here: its energy in joules), and what was saved. This takes "
            "a minute or two, or longer on a busy machine."
        )
        if known:
            console.print(f"Job {JOB_ID!r} continues after {known} trials.")
        names = ("run", "batch size", "why", "outcome", "epochs", "s", "J", "cost")
        table = Table(
            *(Column(name, no_wrap=True) for name in names),
            box=box.SIMPLE_HEAD,
            pad_edge=False,  # it fits into 80 columns
            title="A recurring training job finds its batch size",
        )
        with Live(table, console=console, refresh_per_second=4):
            for run in range(1, runs + 1):
                recur(url, run, known, table)
            for number in range(measured, controls):
                add_row(table, "", train(url, number, control=True))
        summarize(url, console)
        if sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"):
            with suppress(EOFError, KeyboardInterrupt):  # Ctrl-D and Ctrl-C also end it
                console.input(f"\nSee the job at {url}/ until you press Enter. ")


def recur(url: str, run: int, known: int, table: Table) -> None:
    """One recurrence: launch the run until it reaches its target."""
    for _ in range(TRIES):
        zeus = train(url, known + len(table.rows))
        add_row(table, str(run), zeus)
        if zeus.outcome == "converged":
            return
        table.caption = (
            "Gray: the run missed its target or would have cost too much, and was repeated."
        )
    raise SystemExit(f"run {run} did not reach its target in {TRIES} tries")


def add_row(table: Table, run: str, zeus: ZeusBSOCallback) -> None:
    """Add a run to the table."""
    assert zeus.trial is not None
    assert zeus.last_report is not None
    assert zeus.cost_j is not None
    table.add_row(
        run,
        str(zeus.trial.batch_size),
        zeus.trial.why,
        zeus.outcome,
        str(zeus.last_report.epoch),
        f"{zeus.last_report.time_s:.2f}",
        f"{zeus.last_report.energy_j:.1f}",
        f"{zeus.cost_j:.1f}",
        style=None if zeus.outcome == "converged" else "dim",
    )


def summarize(url: str, console: Console) -> None:
    """Print what the best batch size and the default cost, and what was saved."""
    path = f"{url}/api/v1/jobs/{JOB_ID}"
    job, trials = requests.get(path, timeout=10).json(), list_trials(url)
    spec, hardware, best = job["spec"], job["hardware"][-1], job["best_batch_size"]
    converged = [trial for trial in trials if trial["outcome"] == "converged"]

    def cost(batch_size: int) -> float:
        return mean(trial["cost"] for trial in converged if trial["batch_size"] == batch_size)

    default = spec["default_batch_size"]
    console.print(
        f"\nBest batch size so far: [bold]{best}[/], at a mean cost of {cost(best):.1f} J."
    )
    console.print(
        f"The default, {default}, costs {cost(default):.1f} J "
        f"(ratio {cost(best) / cost(default):.2f})."
    )
    saved = requests.get(f"{path}/savings", timeout=10).json()["saved"]
    estimate, low, high = (round(saved["energy_j"][key]) for key in ("estimate", "low", "high"))
    console.print(
        f"Savings compared with the default so far: [bold]{estimate} J[/] (95 % interval: "
        f"{low} to {high} J), judging by the runs with the default."
    )
    if low <= 0 <= high:
        console.print(
            "The interval contains 0, so these runs do not prove a saving. More runs narrow it: "
            "start the demo again."
        )
    counted = " (an estimate: no energy counter was read)" if hardware["estimated"] else ""
    console.print(f"Energy by {hardware['meter']}{counted}, on {hardware['device_model']}.")


def list_trials(url: str) -> list[dict[str, Any]]:
    """The job's trials; none before it is registered."""
    response = requests.get(f"{url}/api/v1/jobs/{JOB_ID}/trials?limit=1000", timeout=10)
    return [] if response.status_code == 404 else response.json()["trials"]


def known_trials(url: str) -> tuple[int, int]:
    """How many trials the job has had before, and how many of them were control trials."""
    trials = list_trials(url)
    return len(trials), sum(trial["why"] == "control" for trial in trials)


if __name__ == "__main__":
    main()
