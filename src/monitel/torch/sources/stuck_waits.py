"""Detection of waits that exceed a time limit."""

from __future__ import annotations

from dataclasses import dataclass

from monitel import clock
from monitel.event import Severity
from monitel.handlers import emit
from monitel.torch.context import current_context
from monitel.wait_counter import wait_counters

_POOL = "pytorch.wait_counter.subproc_pool"
_STATES = {f"{_POOL}.running", f"{_POOL}.quiesced"}  # states of the compiler's worker pool, counted while they last


@dataclass
class _InFlight:
    count: int
    since_ns: int
    reported: bool = False


class StuckWaits:
    """Logs ``wait.stuck``, a WARN event, once for each wait that is in flight for too long.

    A wait counter has the number of waits in flight, but not their start times. So the duration is measured from the
    first poll that found a wait of the key in flight, and restarts when any wait of the key ends: a stuck wait is not
    detected while other waits of its key come and go.

    Args:
        seconds: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: dict[str, _InFlight] = {}

    def install(self) -> None:
        """Do nothing: the counters are only polled."""

    def remove(self) -> None:
        """Do nothing: there is nothing to undo."""

    def poll(self) -> None:
        """Log the waits that have exceeded the limit since the last poll."""
        now_ns, before, self._in_flight = clock.monotonic_ns(), self._in_flight, {}
        for key, reading in wait_counters().items():
            if reading.active <= 0 or key in _STATES:
                continue
            wait = before.get(key)
            if wait is None or wait.count != reading.count:
                wait = _InFlight(reading.count, now_ns)
            self._in_flight[key] = wait
            seconds = (now_ns - wait.since_ns) / 1e9
            if seconds >= self._seconds and not wait.reported:
                wait.reported = True
                message = f"stuck in {key} for {seconds:.0f} s"
                data = {"message": message, "wait.key": key, "wait.duration": seconds, **current_context()}
                emit("wait.stuck", data, severity=Severity.WARN)
