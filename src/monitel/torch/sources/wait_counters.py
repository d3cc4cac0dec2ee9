"""torch's own wait counters, among monitel's."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from torch import monitor

from monitel import wait_counter
from monitel.torch._compat import Missing, modules_with, torchs_wait_counter, wait_counter_in_both, wait_totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.wait_counter import WaitReading

_log = logging.getLogger("monitel.torch")


class Waits:
    """Has :func:`monitel.wait_counters` read what torch counts: collectives' set-up, stores, compilers, file locks.

    torch counts from its import on, in C++, and so does what is counted in C++ only. Where a version cannot be asked
    (before 2.10), torch's class is replaced by one that counts here as well: Python's waits from now on, none of C++.
    """

    def install(self) -> None:
        """Add the source, or replace the class wherever torch has it."""
        self._replaced: list[tuple[Any, object]] = []
        self._read: Callable[[], dict[str, WaitReading]] | None
        try:
            self._read = wait_totals()
        except Missing:
            self._read = None
            theirs, both = torchs_wait_counter(), wait_counter_in_both()
            name = theirs.__name__
            for module in {*modules_with(name, theirs), monitor}:
                self._replaced.append((module, getattr(module, name)))
                setattr(module, name, both)
        else:
            wait_counter.add_source(self._readings)

    def remove(self) -> None:
        """Leave torch's counters to torch: what they have counted until now stays."""
        wait_counter.remove_source(self._readings)
        for module, was in self._replaced:
            setattr(module, was.__name__, was)  # type: ignore[attr-defined]

    def _readings(self) -> dict[str, WaitReading]:
        if self._read is None or sys.is_finalizing():
            return {}
        try:
            return self._read()
        except Exception:
            self._read = None
            _log.warning("torch's wait counters cannot be read any more, and are left out", exc_info=True)
            return {}
