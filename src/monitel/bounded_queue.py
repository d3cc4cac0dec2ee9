"""A queue with a limit for items and for bytes: in C if the extension was built, otherwise in Python.

``MONITEL_NO_EXTENSIONS=1``, read at import, selects the Python twin.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel._bounded_queue_py import BoundedQueue, QueueCounts

if not TYPE_CHECKING and os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    # Missing if there was no compiler; any other ImportError is a fault that must be raised.
    with suppress(ModuleNotFoundError):
        from monitel._bounded_queue_c import BoundedQueue

__all__ = ["BoundedQueue", "QueueCounts"]
