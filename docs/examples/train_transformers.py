"""Train a tiny language model with the Trainer of transformers and telemetry, alone or on many ranks.

    python docs/examples/train_transformers.py
    torchrun --nproc-per-node 2 docs/examples/train_transformers.py

The model has random weights, and the data are generated: nothing is downloaded. Numbers of the Trainer, counters and
step times are sent as OTLP to a Collector, or to a spool on disk while OTEL_EXPORTER_OTLP_ENDPOINT is not set, and
written to TensorBoard files.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import monitel.torch
import monitel_otlp
import monitel_tensorboard
from monitel.integrations.transformers import MonitelCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY, LENGTH = 64, 32
BATCH_SIZE = 16  # samples of one process in a step

torch.set_num_threads(1)  # the model is so small that more threads mostly wait for each other


def main(argv: Sequence[str] | None = None) -> None:
    """Set up the telemetry, and train."""
    parser = argparse.ArgumentParser(description="Train a tiny language model with the Trainer, with telemetry.")
    parser.add_argument("--steps", type=int, default=6000, help="optimizer steps (%(default)s)")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/trainer"), help="folder to write to (%(default)s)")
    options = parser.parse_args(argv)

    monitel_otlp.configure(service_name="trainer", spool_dir=options.run_dir / "telemetry")
    if os.environ.get("RANK", "0") == "0":
        monitel_tensorboard.install(options.run_dir / "tensorboard")
    monitel.torch.instrument(window_size=1.0)
    trainer = Trainer(
        LlamaForCausalLM(tiny_config()),
        TrainingArguments(
            output_dir=str(options.run_dir),
            max_steps=options.steps,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=1e-3,
            logging_steps=20,
            eval_strategy="steps",
            eval_steps=200,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.accelerator.is_available(),  # the Trainer does not join the ranks of a CPU otherwise
        ),
        train_dataset=progressions(4096, seed=0),
        eval_dataset=progressions(256, seed=1),
        callbacks=[MonitelCallback()],
    )
    trainer.train()
    trainer.save_state()


def tiny_config() -> LlamaConfig:
    """Return the configuration of a model with about 100,000 weights."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )


def progressions(number: int, *, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences with a random first token and a random difference, which the model finds in the context."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY, (number, 1), generator=generator)
    difference = torch.randint(1, 8, (number, 1), generator=generator)
    tokens = (first + difference * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": each, "labels": each} for each in tokens]


if __name__ == "__main__":
    main()
