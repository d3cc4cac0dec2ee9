"""The recorder of ranges: the C twin if the core runs in C, else the Python twin."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from monitel import _window
from monitel.profiler.ranges._ranges_py import (
    Range,
    begin,
    current,
    end,
    forget_track,
    now,
    record_past,
    set_clock,
    set_listeners,
)

if not TYPE_CHECKING and _window.Accumulator.__module__ == "monitel._window_c":
    # The module is missing in an installation without a compiler; any other ImportError is a fault and propagates.
    with suppress(ModuleNotFoundError):
        from monitel.profiler.ranges._ranges_c import (
            Range,
            begin,
            current,
            end,
            forget_track,
            now,
            record_past,
            set_clock,
            set_listeners,
        )

__all__ = [
    "Range",
    "begin",
    "current",
    "end",
    "forget_track",
    "now",
    "record_past",
    "set_clock",
    "set_listeners",
]
