"""The partition of a thread's time into cycles and stages: in C if the extension was built, otherwise in Python.

``MONITEL_NO_EXTENSIONS=1``, read at import, selects the Python twin.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel.torch.stages._cycle_py import STAGES, Cycle

if not TYPE_CHECKING and os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    # Missing if there was no compiler; any other ImportError is a fault that must be raised.
    with suppress(ModuleNotFoundError):
        from monitel.torch.stages._cycle_c import Cycle

__all__ = ["STAGES", "Cycle"]
