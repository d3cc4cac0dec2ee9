"""Detection of torch.compile, for guards and timers, which do nothing while it traces.

Dynamo silently skips the whole frame around a context manager that does real work.
"""

from __future__ import annotations

import sys


def compiling() -> bool:
    """Return True while ``torch.compile`` traces the caller.

    Nothing is traced before ``torch._dynamo`` is loaded. It is loaded after torch itself, which another thread may be
    importing at this moment.
    """
    return "torch._dynamo" in sys.modules and sys.modules["torch"].compiler.is_dynamo_compiling()
