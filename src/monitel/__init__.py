"""Telemetry for training loops: the ``torch.monitor`` API without torch.

``import monitel as monitor`` replaces ``from torch import monitor``.
"""

from functools import partial as _partial
from typing import TYPE_CHECKING as _TYPE_CHECKING

from monitel.counter import Counter, CounterReading, counter, counters
from monitel.event import STAT_EVENT, Event, Severity, data_value_t
from monitel.handlers import (
    EventHandlerHandle,
    TensorboardEventHandler,
    emit,
    log_event,
    register_event_handler,
    unregister_event_handler,
)
from monitel.logged_numbers import LoggedNumbers, log
from monitel.stats.definition import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Aggregation, StatDefinition
from monitel.stats.registry import close_expired_windows, flush, stat
from monitel.stats.stat import Stat
from monitel.stats.window import Window
from monitel.training import counters as _training_counters  # noqa: F401  counts the time of each activity
from monitel.training.activities import Activity, Ledger, activity, ledger
from monitel.training.step import get_step, set_step
from monitel.wait_counter import WaitCounter, WaitMaxima, WaitReading, _WaitCounterTracker, wait_counters

if _TYPE_CHECKING:
    from typing import Any as _Any

    from monitel import integrations as integrations
    from monitel import profiler, testing
    from monitel import torch as torch
    from monitel.run_config import RunConfig, config
    from monitel.started_run import Run, start
    from monitel.stats.histogram import Histogram

_WaitCounter = WaitCounter
__version__ = "0.3.0"

__all__ = ["COUNT", "HISTOGRAM", "MAX", "MEAN", "MIN", "STDDEV", "SUM", "VALUE", "Aggregation", "StatDefinition"]
__all__ += ["Histogram", "Stat", "Window", "close_expired_windows", "flush", "get_step", "set_step", "stat"]
__all__ += ["STAT_EVENT", "Event", "EventHandlerHandle", "Severity", "TensorboardEventHandler", "data_value_t", "emit"]
__all__ += ["LoggedNumbers", "RunConfig", "config", "log"]
__all__ += ["log_event", "register_event_handler", "unregister_event_handler"]
__all__ += ["Counter", "CounterReading", "WaitCounter", "WaitMaxima", "WaitReading", "_WaitCounter"]
__all__ += ["_WaitCounterTracker", "counter", "counters", "wait_counters"]
__all__ += ["Activity", "Ledger", "Run", "activity", "ledger", "profiler", "start", "testing"]


_LATER = {"Histogram": "stats.histogram", "Run": "started_run", "start": "started_run"}
_LATER |= {"RunConfig": "run_config", "config": "run_config"}


def _on_demand(package: str, name: str) -> "_Any":
    """Import a module of a package where it is first used: it takes time, or needs another package."""
    if not name.startswith("_"):
        from importlib import import_module

        if package == __name__ and name in _LATER:
            return getattr(import_module(f"{package}.{_LATER[name]}"), name)
        try:
            return import_module(f"{package}.{name}")
        except ImportError as error:
            if error.name != f"{package}.{name}":
                raise AttributeError(f"module '{package}.{name}' cannot be imported: {error}") from error
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


__getattr__ = _partial(_on_demand, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "integrations", "profiler", "testing", "torch"})
