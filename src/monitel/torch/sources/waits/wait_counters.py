"""torch's wait counters as a source of monitel's."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from monitel import wait_counter
from monitel.torch._compat import wait_totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.wait_counter import WaitReading

_log = logging.getLogger("monitel.torch")


class WaitCounters:
    """Adds torch's wait counters to :func:`monitel.wait_counters`: collective set-up, stores, compilers, file locks.

    torch counts from its import on, in C++, so waits before ``install()`` and waits in C++ are included.
    """

    def install(self) -> None:
        """Add the source."""
        self._read: Callable[[], dict[str, WaitReading]] | None = wait_totals()
        wait_counter.add_source(self._readings)

    def remove(self) -> None:
        """Remove the source. Its final readings are kept."""
        wait_counter.remove_source(self._readings)

    def _readings(self) -> dict[str, WaitReading]:
        if self._read is None or sys.is_finalizing():  # torch's counters may be destroyed by then
            return {}
        try:
            return self._read()
        except Exception:
            self._read = None
            _log.warning("torch's wait counters cannot be read any more and are left out", exc_info=True)
            return {}
