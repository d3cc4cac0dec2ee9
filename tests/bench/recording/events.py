"""Events, and the add that closes a window and logs one."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from peers import torch_stat
from race import optional, race, timed
from row import report

import monitel
from monitel.stats.definition import TORCHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from race import Contender

_STATS = 300
_WHEN = datetime.now(timezone.utc).replace(tzinfo=None)
_DATA: dict[str, str | int | float] = {"epoch": 3, "loss": 0.25, "phase": "train"}
_TORCH = optional("torch.monitor")


def closing(make: Callable[[], Any]) -> Contender:
    """A contender that adds to Stats whose window a single sample fills."""
    return timed("for stat in stats: stat.add(0.25)", lambda: {"stats": [make() for _ in range(_STATS)]}, _STATS)


def constructing(event: Callable[..., Any]) -> Contender:
    """A contender that makes Events."""
    return timed("Event('epoch', when, data)", lambda: {"Event": event, "when": _WHEN, "data": _DATA})


def measure(handlers: str) -> None:
    """log_event, and a window that closes, with the handlers that are registered."""
    event = monitel.Event("epoch", _WHEN, _DATA)
    logging = {"monitel": timed("log(event)", lambda: {"log": monitel.log_event, "event": event})}
    windows = {"monitel": closing(lambda: monitel.Stat("loss", TORCHS, 1e9, 1))}
    if _TORCH:
        torchs = _TORCH.Event("epoch", _WHEN, _DATA)
        log = _TORCH.log_event
        logging["torch.monitor"] = timed("log(event)", lambda: {"log": log, "event": torchs})
        windows["torch.monitor"] = closing(lambda: torch_stat("loss", 1))
    report(f"log_event, {handlers}", race(logging), {"torch.monitor": None})
    report(f"add that closes the window, {handlers}", race(windows), {"torch.monitor": None})


def main() -> None:
    """Measure without a handler, then with one that does nothing."""
    making = {"monitel": constructing(monitel.Event)}
    if _TORCH:
        making["torch.monitor"] = constructing(_TORCH.Event)
    report("Event()", race(making), {"torch.monitor": None})
    measure("no handler")
    with monitel.register_event_handler(lambda event: None):
        handle = _TORCH and _TORCH.register_event_handler(lambda event: None)
        measure("one handler")
        if _TORCH:
            _TORCH.unregister_event_handler(handle)  # torch crashes at exit with handlers registered


if __name__ == "__main__":
    main()
