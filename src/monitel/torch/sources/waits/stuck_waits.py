"""Detection of waits that exceed a time limit."""

from __future__ import annotations

from dataclasses import dataclass

from monitel import clock
from monitel.crash_stacks import stacks_now
from monitel.event import Severity
from monitel.handlers import emit
from monitel.torch.context import current_context
from monitel.torch.sources.waits.stuck_activity import StuckActivity
from monitel.wait_counter import wait_counters

_POOL = "pytorch.wait_counter.subproc_pool"
_MAX_STACKTRACE = 32 << 10  # characters; Loki accepts 64 KB of attributes per log record
_STATES = {f"{_POOL}.running", f"{_POOL}.quiesced"}  # states of the compiler's worker pool, counted while they last


@dataclass
class _InFlight:
    count: int
    since_ns: int
    reported: bool = False


class StuckWaits:
    """Logs ``wait.stuck``, a WARN event with all stacks, once for each wait that is in flight for too long.

    A wait counter has the number of waits in flight, but not their start times. So the duration is measured from the
    first poll that found a wait of the key in flight, and restarts when any wait of the key ends: a stuck wait is not
    detected while other waits of its key come and go. :class:`StuckActivity` counts the time in the ledger.

    Args:
        seconds: The time limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: dict[str, _InFlight] = {}
        self._activity = StuckActivity(seconds)

    def install(self) -> None:
        """Do nothing: the counters are only polled."""

    def remove(self) -> None:
        """End the activity ``stuck``."""
        self._activity.remove()

    def poll(self) -> None:
        """Log the waits that have exceeded the limit since the last poll."""
        now_ns, before, self._in_flight = clock.monotonic_ns(), self._in_flight, {}
        readings = wait_counters().items()
        waits = {key: reading.count for key, reading in readings if reading.active > 0 and key not in _STATES}
        self._activity.poll(waits, now_ns)
        for key, count in waits.items():
            wait = before.get(key)
            if wait is None or wait.count != count:
                wait = _InFlight(count, now_ns)
            self._in_flight[key] = wait
            seconds = (now_ns - wait.since_ns) / 1e9
            if seconds >= self._seconds and not wait.reported:
                wait.reported = True
                message = f"stuck in {key} for {seconds:.0f} s"
                data = {
                    "message": message,
                    "wait.key": key,
                    "wait.duration": seconds,
                    "code.stacktrace": stacks_now(_MAX_STACKTRACE),
                    **current_context(),
                }
                emit("wait.stuck", data, severity=Severity.WARN)
