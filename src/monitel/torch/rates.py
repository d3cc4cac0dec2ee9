"""Amounts of work and their rates: samples and tokens per second, and model FLOPs utilization."""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from monitel import clock
from monitel.counter import Counter, find, number_of_counters
from monitel.logged_numbers import log
from monitel.process.os_threads import RLock
from monitel.stats._window import get_step
from monitel.stats.definition import window_length_ns
from monitel.training.counters import training_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Amount = float | Callable[[], float]
    _Mark = tuple[int, int | None, Sequence[float]]  # monotonic time, step, and the total of each gauge's counter

_log = logging.getLogger("monitel.torch")
_NONE: tuple[float, ...] = ()


class Rates:
    """Counts the work of training steps, and logs it per second of wall time, once per window.

    A rate reaches from the last step of the previous window to the last one of its window, or to the end without one.
    """

    def __init__(
        self,
        window_size: float,
        samples: Amount | None,
        tokens: Amount | None,
        flops: Amount | None,
        peak_flops: float | None,
    ) -> None:
        self._flops = Counter("training.flops", "", "", {})
        self._amounts: list[tuple[str, Amount, Counter]] = [
            (
                f"{work}_per_step",
                amount if callable(amount) or amount % 1 else int(amount),
                training_counter(f"training.{work}"),
            )
            for work, amount in (("samples", samples), ("tokens", tokens))
            if amount is not None
        ]
        if flops is not None:
            self._amounts.append(("flops_per_step", flops, self._flops))
        self._warned: set[str] = set()  # names of amounts
        self._gauges: list[tuple[str, Counter, float]] = []  # name, counter, amount per second that is 1
        if peak_flops is not None:
            self._gauges.append(("training.mfu", self._flops, peak_flops))
        self._known = -1  # number of counters at the last search
        self._now = clock.reading()
        self._window_ns = window_length_ns(window_size)
        self.reset()

    def reset(self) -> None:
        self._flops._reset()
        self._lock = RLock()  # of the attributes; not held while rates are logged
        self._since: _Mark | None = None  # end of the last interval
        self._last: _Mark | None = None  # end of the last step
        self._due_ns = self._now() + self._window_ns

    def record_step(self, now_ns: int, step: int) -> None:
        """Count the work of a step that has ended."""
        for name, amount, counter in self._amounts:
            try:
                counter.add(amount() if callable(amount) else amount)
            except Exception:
                if name not in self._warned:
                    self._warned.add(name)
                    message = "%s failed: a step's amount is not counted (further failures are not logged)"
                    _log.warning(message, name, exc_info=True)
        if self._gauges or number_of_counters() != self._known:
            self._last = self._mark(now_ns, step)
        else:
            self._last = now_ns, step, _NONE
        if self._since is None:
            with self._lock:
                self._since = self._since or self._last

    def poll(self) -> None:
        """Log the rates if a window is over."""
        with self._lock:
            now_ns = self._now()
            if now_ns < self._due_ns:
                return
            self._due_ns += (now_ns - self._due_ns) // self._window_ns * self._window_ns + self._window_ns
        since = self._since
        if not self._log_until(self._last) and since is not None and now_ns - since[0] >= self._window_ns:
            self._log_until(self._mark(now_ns, get_step()))

    def flush(self) -> None:
        """Log the rates up to the last step, if one has ended since the rates were logged."""
        self._log_until(self._last)

    def _mark(self, now_ns: int, step: int | None) -> _Mark:
        if number_of_counters() != self._known:
            self._find_counters()
        return now_ns, step, [counter._total for _name, counter, _one in self._gauges]

    def _find_counters(self) -> None:
        with self._lock:
            self._known = number_of_counters()
            names = {name for name, _counter, _one in self._gauges}
            for counter_name in ("training.samples", "training.tokens"):
                counter, name = find(counter_name), f"{counter_name}.rate"
                if counter is not None and name not in names:
                    self._gauges.append((name, counter, 1.0))

    def _log_until(self, until: _Mark | None) -> bool:
        """Log the rates from the last interval's end to a mark, unless it is not later; return whether it is."""
        with self._lock:
            since = self._since
            if since is None or until is None or until[0] <= since[0]:
                return False
            self._since = until
        seconds = (until[0] - since[0]) / 1e9
        amounts = [now - then for now, then in zip_longest(until[2], since[2], fillvalue=0)]  # 0: had not existed
        if amounts:
            gauges = zip(self._gauges, amounts, strict=False)
            log({name: amount / seconds / one for (name, _counter, one), amount in gauges}, step=until[1])
        return True
