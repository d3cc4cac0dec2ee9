"""Every live Stat is logged when the process ends, in the children of multiprocessing too."""

from __future__ import annotations

import atexit
import os
import sys

from monitel.registry import flush

_BEFORE_QUEUES = 100  # multiprocessing.Queue closes at priority 10; higher goes first
_registered = False

atexit.register(flush)  # exporters register later and flush before they shut down: atexit runs last in, first out


def _flush_in_multiprocessing() -> None:
    """Have multiprocessing flush at the end of a process: its forked children leave without atexit.

    multiprocessing empties its list of finalizers in each child and then calls what is registered to run after
    its fork, so the finalizer is put there anew. It is looked for, not imported: a fork of its own comes later.
    """
    global _registered
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _registered:
        _registered = True
        util.register_after_fork(flush, _finalize)
        _finalize(flush)


def _finalize(_flush: object) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, flush, exitpriority=_BEFORE_QUEUES)


_flush_in_multiprocessing()
os.register_at_fork(before=_flush_in_multiprocessing)
