"""The recording of ranges: in C where the window is in C, else in Python."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from monitel import _window
from monitel.profiler._ranges_py import Range, begin, current, end, forget, now, past, set_clock, tell

if not TYPE_CHECKING and _window.Accumulator.__module__ == "monitel._window_c":
    # Missing where no compiler was there; any other ImportError is a fault that must be seen.
    with suppress(ModuleNotFoundError):
        from monitel.profiler._ranges_c import Range, begin, current, end, forget, now, past, set_clock, tell

__all__ = ["Range", "begin", "current", "end", "forget", "now", "past", "set_clock", "tell"]
