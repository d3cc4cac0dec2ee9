"""A word about waits that do not end."""

from __future__ import annotations

from dataclasses import dataclass

from monitel import clock
from monitel.event import Severity
from monitel.handlers import emit
from monitel.torch.place import place
from monitel.wait_counter import wait_counters

_POOL = "pytorch.wait_counter.subproc_pool"
_NO_WAITS = {f"{_POOL}.running", f"{_POOL}.quiesced"}  # states of the compiler's workers, for as long as they are there


@dataclass
class _InFlight:
    count: int
    since_ns: int
    said: bool = False


class Stuck:
    """Logs ``wait.stuck``, a WARN event, once for each wait that is in flight for too long.

    A wait counter tells how many are in flight, not since when. So the time is taken from the first look that found a
    wait of the key in flight with no other one ended since: a wait that hangs while others of its key come and go is
    not seen.

    Args:
        after: Seconds.

    Raises:
        ValueError: Not positive.
    """

    def __init__(self, after: float) -> None:
        if not after > 0:
            raise ValueError(f"stuck_after must be seconds, more than 0, or None for never; got {after!r}")
        self._after = after
        self._in_flight: dict[str, _InFlight] = {}

    def install(self) -> None:
        """Nothing is plugged in: it looks at each tick."""

    def remove(self) -> None:
        """Nothing is to be undone."""

    def tick(self) -> None:
        """Look."""
        now_ns, before, self._in_flight = clock.monotonic_ns(), self._in_flight, {}
        for key, reading in wait_counters().items():
            if reading.active <= 0 or key in _NO_WAITS:
                continue
            wait = before.get(key)
            if wait is None or wait.count != reading.count:
                wait = _InFlight(reading.count, now_ns)
            self._in_flight[key] = wait
            seconds = (now_ns - wait.since_ns) / 1e9
            if seconds >= self._after and not wait.said:
                wait.said = True
                message = f"stuck in {key} for {seconds:.0f} s"
                what = {"message": message, "wait.key": key, "wait.duration": seconds, **place()}
                emit("wait.stuck", what, severity=Severity.WARN)
