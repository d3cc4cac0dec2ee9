"""The add that closes a window and logs an event."""

from collections.abc import Callable
from typing import Any

from peers import torch_stat
from race import Contender, optional, race, timed
from row import report

import monitel
from monitel.stats.definition import TORCHS

_STATS = 300
_TORCH = optional("torch.monitor")


def closing(make: Callable[[], Any]) -> Contender:
    """A contender that adds to Stats whose window a single sample fills."""
    return timed("for stat in stats: stat.add(0.25)", lambda: {"stats": [make() for _ in range(_STATS)]}, _STATS)


def main() -> None:
    """Measure with a handler that does nothing."""
    with monitel.register_event_handler(lambda event: None):
        contenders = {"monitel": closing(lambda: monitel.Stat("loss", TORCHS, 1e9, 1))}
        handle = _TORCH and _TORCH.register_event_handler(lambda event: None)
        if _TORCH:
            contenders["torch.monitor"] = closing(lambda: torch_stat("loss", 1))
        report("add that closes the window, one handler", race(contenders), {"torch.monitor": None})
        if _TORCH:
            _TORCH.unregister_event_handler(handle)  # torch crashes at exit with handlers registered


if __name__ == "__main__":
    main()
