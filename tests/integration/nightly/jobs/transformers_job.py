"""A job of transformers' Trainer with an evaluation: a tiny model with random weights, and no downloads."""

from __future__ import annotations

from typing import Any

import torch
from tests.integration.nightly.jobs import truth
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from monitel.integrations.transformers import MonitelCallback

SAMPLES, BATCH = 2_002, 4  # the last batch has two samples


class Truth(TrainerCallback):  # type: ignore[misc]
    """Notes what the Trainer does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note a batch."""
        truth.batch_done(min(BATCH, SAMPLES - BATCH * (state.global_step - 1)))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Note the numbers of one call."""
        truth.NUMBERS.append((state.global_step, dict(logs)))


def main() -> None:
    """Train one epoch."""
    truth.start()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    rows = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(32, (SAMPLES, 8))]
    arguments = TrainingArguments(
        "checkpoints",
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=200,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [MonitelCallback(), Truth()]
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=callbacks)
    trainer.train()
    truth.CONFIG.update(
        learning_rate=arguments.learning_rate, batch=arguments.per_device_train_batch_size, width=model.config.n_embd
    )
    truth.report(tokens=SAMPLES * 8)


if __name__ == "__main__":
    main()
