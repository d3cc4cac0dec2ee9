"""Entry point for ``opentelemetry-instrument``: instruments PyTorch jobs without code."""

from __future__ import annotations

import os
from typing import Any

_RANK = "MONITEL_TORCH_RANK_PROCESS"


class TorchInstrumentor:
    """Calls ``monitel.torch.instrument()``, which reads its variables, in the ranks of a job, and in no other process.

    It is the entry point ``monitel_torch`` of ``opentelemetry_instrumentor``, so that
    ``opentelemetry-instrument torchrun --nproc-per-node 2 train.py`` is enough. A rank is a process whose
    launcher has set ``RANK``. Child processes of a rank, such as workers of a DataLoader or of the compiler, inherit
    that variable but are not ranks: they are recognized by another variable, which a rank sets to its process id. torch
    is imported in ranks only.
    """

    def instrument(self, **_given: Any) -> None:
        """Instrument this process if it is a rank."""
        pid = str(os.getpid())
        if not os.environ.get("RANK") or os.environ.setdefault(_RANK, pid) != pid:
            return
        from monitel.torch import instrument

        instrument()

    def uninstrument(self, **_given: Any) -> None:
        """Uninstrument this process if it was instrumented."""
        if os.environ.get(_RANK) == str(os.getpid()):
            from monitel.torch import instrument

            instrument().uninstrument()
