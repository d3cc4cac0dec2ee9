"""The activities of a thread: in C if the extension was built, otherwise in Python.

``MONITEL_NO_EXTENSIONS=1``, read at import, selects the Python twin.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from monitel._activities_py import Activities, Activity, main_thread_pulse

if not TYPE_CHECKING and os.environ.get("MONITEL_NO_EXTENSIONS", "0") in {"", "0"}:
    # Missing if there was no compiler; any other ImportError is a fault that must be raised.
    with suppress(ModuleNotFoundError):
        from monitel._activities_c import Activities, Activity, main_thread_pulse

__all__ = ["Activities", "Activity", "main_thread_pulse"]
