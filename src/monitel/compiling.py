"""Whether torch.compile is tracing this code.

A context manager that does real work makes dynamo skip the whole frame around it, without a word. So guards and
timers return at once while it traces.
"""

from __future__ import annotations

import sys


def compiling() -> bool:
    """True while ``torch.compile`` traces the caller; False where torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
