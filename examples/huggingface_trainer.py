"""A recurring job of Hugging Face's Trainer; each run is one recurrence.

A small BERT learns whether a sequence contains a token; it is made from a configuration, so that
nothing is downloaded. Several processes: `torchrun --nproc-per-node=2`. A run that was killed goes
on with `--resume=huggingface-runs/checkpoint-8`, in as many processes as before.

zeus-service serve &
python examples/huggingface_trainer.py
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from zeus_lightning import Recurrence, ZeusConfigError, ZeusError


class ZeusCallback(TrainerCallback):
    """Reports each evaluation of a Trainer to its `Recurrence`, and stops it as the service says.

    Args:
        run: The `Recurrence`, around `train()`.
        monitor: A metric that `evaluate()` returns.
    """

    def __init__(self, run: Recurrence, monitor: str) -> None:
        self.run, self.monitor = run, monitor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that an optimizer step takes the batch size that the service has chosen."""
        step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if step != self.run.batch_size:
            raise ZeusConfigError(
                f"an optimizer step takes {step} samples, but the run's batch size is "
                f"{self.run.batch_size}; divide local_batch_size by gradient_accumulation_steps"
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Report, on all ranks."""
        if self.run.report(metrics[self.monitor], epoch=round(state.epoch or 0)).stop:
            control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the trial beside the checkpoint: `Recurrence(state=...)` resumes it."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
            (folder / "zeus.json").write_text(json.dumps(self.run.state_dict()))


class Sequences(Dataset[dict[str, Any]]):
    """Sequences of tokens, half of which contain the token 1."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(2, 16, (count, 8), generator=generator)
        places = torch.randint(8, (count // 2,), generator=generator)
        self.tokens[torch.arange(0, count, 2), places] = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": (index + 1) % 2}


def accuracy(predictions: Any) -> dict[str, float]:
    """The share of sequences that are classified right."""
    right = predictions.predictions.argmax(-1) == predictions.label_ids
    return {"accuracy": float(right.mean())}


def train(url: str, folder: Path, resume: Path | None = None, accumulate: int = 1) -> Recurrence:
    """Train once, and return how it went."""
    config = BertConfig(
        vocab_size=16,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
    )
    model = BertForSequenceClassification(config)
    data, held_out = Sequences(512, seed=0), Sequences(256, seed=1)
    cpu = not torch.cuda.is_available()
    ranks = PartialState(cpu=cpu)  # sets up torch.distributed, under torchrun
    with Recurrence(
        url,
        job_id=os.environ.get("ZEUS_JOB_ID") or f"huggingface-{ranks.num_processes}",
        target_metric=0.95,
        monitor="eval_accuracy",
        batch_sizes=[32, 64, 128],
        default_batch_size=64,
        max_epochs=20,
        device=ranks.device,
        state=None if resume is None else json.loads((resume / "zeus.json").read_text()),
    ) as run:
        arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=run.local_batch_size // accumulate,
            gradient_accumulation_steps=accumulate,
            num_train_epochs=20,
            use_cpu=cpu,
            learning_rate=2e-3,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=held_out,
            compute_metrics=accuracy,
            callbacks=[ZeusCallback(run, "eval_accuracy")],
        )
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    url = os.environ.get("ZEUS_SERVER_URL", "http://127.0.0.1:8765")
    parser.add_argument("--url", default=url, help="the service")
    parser.add_argument("--folder", type=Path, default=Path("huggingface-runs"))
    parser.add_argument("--resume", type=Path, help="checkpoint to resume")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    options = parser.parse_args()
    try:
        run = train(options.url, options.folder, options.resume, options.accumulate)
        if PartialState().is_main_process:
            print(f"{run.outcome} with batch size {run.batch_size} at a cost of {run.cost_j:.1f} J")
    except ZeusError as error:
        raise SystemExit(str(error)) from None
