"""Whether torch.compile is tracing this code.

A context manager that does real work makes dynamo skip the whole frame around it, without a word. So guards and
timers return at once while it traces.
"""

from __future__ import annotations

import sys


def compiling() -> bool:
    """True while ``torch.compile`` traces the caller.

    Nothing is traced before ``torch._dynamo`` is loaded, which is after torch itself: another thread may just be
    importing that.
    """
    return "torch._dynamo" in sys.modules and sys.modules["torch"].compiler.is_dynamo_compiling()
