"""Train the model of torch_char_model.py with telemetry, alone or on many ranks.

    python docs/examples/train_torch.py
    torchrun --nproc-per-node 2 docs/examples/train_torch.py

Metrics of PyTorch, the loss, and the result are sent as OTLP to a Collector, or to a spool on disk while
OTEL_EXPORTER_OTLP_ENDPOINT is not set. Ctrl-C ends the run early, with everything written.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch_char_model import CONTEXT, INTERRUPTED, CharModel, evaluate, parse_arguments, train

import monitel
import monitel.torch
import monitel_otlp

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 1.0  # seconds, about twenty steps


def main(argv: Sequence[str] | None = None) -> None:
    """Set up the telemetry, train, and record the quality of the model."""
    arguments = parse_arguments(argv)
    torch.manual_seed(arguments.seed)
    model = CharModel()

    monitel_otlp.configure(service_name="char-model", sigterm=True)  # torchrun ends ranks by SIGTERM when one fails
    characters = arguments.batch_size * CONTEXT  # of this rank, in a step
    weights = sum(each.numel() for each in model.parameters())
    monitel.torch.instrument(
        tokens_per_step=characters,
        flops_per_step=6 * weights * characters,  # per weight and character: two forward, four backward
        peak_flops=peak_flops(),
        window_size=WINDOW,
    )
    train_loss = monitel.stat("train.loss", window_size=WINDOW)

    for loss in train(model, arguments):
        train_loss.add(loss)
    monitel.emit("evaluation", loss=evaluate(model))


def peak_flops(size: int = 1024) -> float:
    """Measure the FLOPs per second of this processor in a matrix product. For a GPU use its data sheet."""
    matrix, fastest = torch.ones(size, size), math.inf
    for _ in range(5):
        begin = time.perf_counter()
        matrix @ matrix
        fastest = min(fastest, time.perf_counter() - begin)
    return 2 * size**3 / fastest


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
