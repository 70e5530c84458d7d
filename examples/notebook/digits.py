# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A recurring training job finds its batch size
#
# One line in the Trainer is all that a recurring job needs:
#
#     Trainer(callbacks=[EarlyStopping("val_loss"), ZeusBSOCallback("http://127.0.0.1:8765")])
#
# Then the target is learned from the first three runs. Here it is given, so that each run counts.
#
# A model in production is trained again and again. This notebook trains a small network on
# scikit-learn's handwritten digits twelve times, as a nightly job would, each time until it reads
# 97 % of them right. `ZeusBSOCallback` asks a service for the batch size of each run, and the
# service learns what each batch size costs. The figures show what each run cost, which batch size
# costs least, and what was saved.
#
# It needs a CPU and about a minute. `pip install '.[notebook]' ./service`, in the repository's
# root, installs what it needs. `digits.py` is the source of `digits.ipynb`: `make notebook`
# executes it.

# %%
import warnings

warnings.filterwarnings("ignore")  # such as that there are no widgets for progress bars

import logging
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import matplotlib.pyplot as plt
import requests
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import zeus_lightning
from zeus_lightning import ZeusBSOCallback
from zeus_lightning.recur.service import OwnService

RECURRENCES = int(os.environ.get("NOTEBOOK_RECURRENCES", "12"))
TARGET = float(os.environ.get("NOTEBOOK_TARGET", "0.97"))  # the share of digits that are read right
JOB_ID = "notebook-digits"

torch.set_num_threads(1)  # the network is so small that more threads only wait for each other
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# %% [markdown]
# ## The service
#
# It stores what it learns in one SQLite file. Here it starts with the notebook, on a free port, and
# ends with it; in production, one service runs for all jobs, and `ZEUS_SERVER_URL` names it.

# %%
folder = Path(tempfile.mkdtemp())
stack = ExitStack()
service = OwnService(f"sqlite:///{folder}/zeus.sqlite3", folder / "service.log")
url = stack.enter_context(service).url

# %% [markdown]
# ## The training program
#
# It is what it would be without the callback. All that the callback needs is a `batch_size` that
# the dataloader follows, and a metric: here, `val_acc`.


# %%
class Digits(L.LightningDataModule):
    """1,797 images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 128  # the default, from which the service starts
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
        split = torch.Generator().manual_seed(0)
        self.train_data, self.val_data = random_split(data, [0.8, 0.2], split)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Training data in batches of the size that the callback sets."""
        return DataLoader(self.train_data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Validation data; their batch size changes nothing."""
        return DataLoader(self.val_data, batch_size=512)


class DigitsNet(L.LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
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
        self.log("val_acc", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


# %% [markdown]
# ## The recurrences
#
# The callback is one argument of the Trainer. A run that is expected to cost more than twice what
# the best batch size costs is stopped early; `zeus_lightning.fit` then trains again, with the next
# batch size that the service proposes, until a run reaches the target.
#
# `eta_knob=1` counts energy alone. Without it, half of the cost is time, which in runs of some
# seconds depends on what else the machine does.
#
# Every third run is a control trial: `ZEUS_CONTROL=1` asks the service for the default batch size,
# without early stopping. Control trials measure what the job would cost without a choice.


# %%
def make_trainer() -> L.Trainer:
    """A Trainer for one try."""
    zeus = ZeusBSOCallback(
        url,
        target_metric=TARGET,
        monitor="val_acc",
        job_id=JOB_ID,
        batch_sizes=[8, 16, 32, 64, 128, 256, 512],
        eta_knob=1,
    )
    return L.Trainer(
        max_epochs=100,
        callbacks=[zeus],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def get(path: str) -> dict:
    """What the service has stored of the job."""
    return requests.get(f"{url}/api/v1/jobs/{JOB_ID}{path}", timeout=10).json()


recurrences = []  # the trials of each: those that failed, and the one that reached the target
print("run  batch size  outcome        epochs  energy in J  why")
for run in range(1, RECURRENCES + 1):
    os.environ["ZEUS_CONTROL"] = "1" if run % 3 == 0 else "0"
    L.seed_everything(run, verbose=False)
    zeus_lightning.fit(make_trainer, DigitsNet, Digits)
    known = sum(len(trials) for trials in recurrences)
    recurrences.append(get("/trials?limit=1000")["trials"][known:])
    for trial in recurrences[-1]:
        print(
            f"{run:3}  {trial['batch_size']:10}  {trial['outcome']:13}  {trial['epoch']:6}  "
            f"{trial['energy_j']:11.1f}  {trial['why']}"
        )

# %% [markdown]
# ## What each recurrence cost
#
# The service starts from the default and explores from there. The height of a bar includes the runs
# of that recurrence that were stopped early, if there were any.

# %%
job = get("")
hardware = job["hardware"][-1]
estimated = " (an estimate)" if hardware["estimated"] else ""
ENERGY = f"energy in J{estimated}"

figure, axes = plt.subplots(figsize=(8, 3.5))
for run, trials in enumerate(recurrences, start=1):
    bottom = 0.0
    for trial in trials:
        color = "C0" if trial["outcome"] == "converged" else "C1"
        color = "C7" if trial["why"] == "control" else color
        axes.bar(run, trial["cost"], bottom=bottom, color=color)
        bottom += trial["cost"]
    axes.annotate(str(trials[-1]["batch_size"]), (run, bottom), ha="center", va="bottom")
axes.bar(0, 0, color="C0", label="reached the target, at the batch size above")
axes.bar(0, 0, color="C7", label="control trial: the default batch size")
if any(len(trials) > 1 for trials in recurrences):
    axes.bar(0, 0, color="C1", label="failed, and tried again")
axes.set(xlabel="recurrence", ylabel=ENERGY, xlim=(0.4, RECURRENCES + 0.6))
axes.margins(y=0.15)
axes.legend()
plt.show()

# %% [markdown]
# ## The valley
#
# Small batches need many steps for an epoch, large ones many epochs for the target. In between
# there is a batch size of lowest cost, which differs from one network, data set and device to the
# next. The service looks for it while the job does its work, so it spends little on batch sizes
# that are unlikely to be the best: those without a point were never tried. Runs of one batch size
# differ by their random numbers, which is why the service may try neighbors of the best one
# again.

# %%
figure, axes = plt.subplots(figsize=(8, 3.5))
for outcome, style, label in (
    ("converged", "o", "reached the target"),
    ("early_stopped", "^", "stopped early: costs at least this"),
):
    points = [
        (trial["batch_size"], trial["cost"])
        for trials in recurrences
        for trial in trials
        if trial["outcome"] == outcome
    ]
    if points:
        axes.plot(*zip(*points, strict=True), style, label=label, alpha=0.7)
axes.axvline(job["best_batch_size"], color="C2", linestyle=":", label="best batch size so far")
axes.set_xscale("log", base=2)
axes.set_xticks(job["spec"]["batch_sizes"], job["spec"]["batch_sizes"])
axes.set(xlabel="batch size", ylabel=ENERGY, ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# ## What was saved
#
# The service compares all that the job has spent, failed tries included, with as many runs of the
# default batch size.

# %%
savings = get("/savings")
spent = savings["spent"]["energy_j"]
expected = savings["hardware"][0]["expected"]["energy_j"]["estimate"]  # of a run with the default
saved = [0.0]
for trial in (trial for trials in recurrences for trial in trials):
    of_default = expected if trial["outcome"] == "converged" else 0.0
    saved.append(saved[-1] + of_default - trial["energy_j"])

figure, axes = plt.subplots(figsize=(8, 3.5))
axes.plot(saved, "o-")
axes.axhline(0, color="grey", linewidth=0.8)
axes.set(xlabel="runs, with those that failed", ylabel=f"saved {ENERGY}")
plt.show()

energy = savings["saved"]["energy_j"]
print(
    f"The best batch size so far is {job['best_batch_size']}. {RECURRENCES} recurrences have cost "
    f"{spent:.0f} J, and saved {energy['estimate']:.0f} J compared with the default batch size of "
    "128\n"
    f"(95 % interval: {energy['low']:.0f} to {energy['high']:.0f} J). Energy is measured by "
    f"{hardware['meter']}{estimated} on {hardware['device_model']}."
)

# %% [markdown]
# What to make of it:
#
# - The default, 128, was an ordinary choice that happened to be expensive for this network, so
#   exploring paid almost at once. Where the default is close to the best, a job pays for exploring
#   first, and has little to gain.
# - The interval follows from the runs with the default. Without control trials it would be much
#   wider: the service has good reason to run the default no more. `zeus-lightning recur --compare`
#   runs a training script with every other run as a control trial.
# - With `cpu-estimate` the joules are CPU time at 3.5 W a core: enough to compare runs on one
#   machine, but not measured. On a GPU, or where the processor's counters are readable, they are.

# %%
stack.close()  # ends the service
