"""An item into a bounded queue that is full, beside a deque that counts nothing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from race import race, timed
from row import report

from monitel.bounded_queue import BoundedQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from race import Contender

_LIMIT = 1000
_PAYLOAD = {"epoch": "3", "phase": "train", "loss": 0.25}


def putting(code: str, put: Callable[..., object]) -> Contender:
    """A contender that puts one item after the other."""
    return timed(code, lambda: {"put": put, "payload": _PAYLOAD}, unrolled=10)


def main() -> None:
    """Measure without a payload, and with one whose size is estimated."""
    compiled = BoundedQueue.__module__ == "monitel._bounded_queue_c"
    twin = "C" if compiled else "Python twin"
    for what, code in (("no payload", "put(None)"), ("a payload of 3 attributes", "put(None, payload)")):
        queue: BoundedQueue[Any] = BoundedQueue(_LIMIT, 1 << 40)
        append = deque[None](maxlen=_LIMIT).append
        costs = race({"monitel": putting(code, queue.put), "deque": putting("put(None)", append)})
        report(f"BoundedQueue.put, {what}, {twin}", costs, {"deque": 3.0 if compiled and "no" in what else None})


if __name__ == "__main__":
    main()
