"""Entry point for ``opentelemetry-instrument``: instruments PyTorch jobs without code."""

from __future__ import annotations

import os
from typing import Any

_RANK = "MONITEL_TORCH_RANK_PROCESS"


class TorchInstrumentor:
    """Calls ``monitel.torch.instrument()`` in the ranks of a job: the entry point of ``opentelemetry_instrumentor``.

    A rank is a process whose launcher has set ``RANK``. Its child processes, such as workers of a DataLoader, inherit
    that variable: they are recognized by another one, which a rank sets to its process id.
    """

    def instrument(self, **_given: Any) -> None:
        pid = str(os.getpid())
        if not os.environ.get("RANK") or os.environ.setdefault(_RANK, pid) != pid:
            return
        from monitel.torch import instrument

        instrument()

    def uninstrument(self, **_given: Any) -> None:
        if os.environ.get(_RANK) == str(os.getpid()):
            from monitel.torch import instrument

            instrument().uninstrument()
