"""PyTorch jobs without a line of code: what ``opentelemetry-instrument`` calls in each process."""

from __future__ import annotations

import os
from typing import Any

_RANK = "MONITEL_TORCH_RANK_PROCESS"


class TorchInstrumentor:
    """Calls ``monitel.torch.instrument()`` in the ranks of a job, and in no other process.

    It is the entry point ``monitel_torch`` of ``opentelemetry_instrumentor``, so that
    ``opentelemetry-instrument torchrun --nproc-per-node 2 train.py`` is enough. A rank is a process that its launcher
    has told its ``RANK``. What a rank itself starts, such as a worker of a DataLoader or of the compiler, has that
    variable too, and is none: it is known by another one, in which a rank notes its process id. torch is imported in
    ranks only.
    """

    def instrument(self, **_given: Any) -> None:
        """Instrument this process if it is a rank."""
        own = str(os.getpid())
        if not os.environ.get("RANK") or os.environ.setdefault(_RANK, own) != own:
            return
        from monitel.torch import instrument

        instrument()

    def uninstrument(self, **_given: Any) -> None:
        """End it, where it runs."""
        if os.environ.get(_RANK) == str(os.getpid()):
            from monitel.torch import instrument

            instrument().uninstrument()
