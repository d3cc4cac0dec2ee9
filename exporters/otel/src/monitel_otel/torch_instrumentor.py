"""Entry point for ``opentelemetry-instrument``: instruments PyTorch jobs without code."""

from __future__ import annotations

import os
from typing import Any

from monitel.runs.exporters import is_recorded


class TorchInstrumentor:
    """Calls ``monitel.torch.instrument()`` in the ranks of a job: the entry point of ``opentelemetry_instrumentor``.

    A rank is a process whose launcher has set ``RANK``. Its child processes, such as workers of a DataLoader, inherit
    the variable, and are not ranks.
    """

    def instrument(self, **_given: Any) -> None:
        if os.environ.get("RANK") and is_recorded():
            from monitel.torch import instrument

            instrument()

    def uninstrument(self, **_given: Any) -> None:
        if os.environ.get("RANK") and is_recorded():
            from monitel.torch import instrument

            instrument().uninstrument()
