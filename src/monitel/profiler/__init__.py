"""Profiler for training loops: the API of ``torch.profiler`` without torch.

To use it, replace ``from torch.profiler import ...`` by ``from monitel.profiler import ...``. The parts:

* ``ranges``: named stretches of time, and subscriptions to them (:mod:`monitel.profiler.ranges`, public)
* ``trace``: recordings of ranges, and trace files
* ``settings``, ``events``, ``profiles``, ``execution_trace``: the classes and functions of ``torch.profiler``
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from monitel.profiler import itt as itt
from monitel.profiler import ranges as ranges
from monitel.profiler.events import EventList as EventList
from monitel.profiler.events import FunctionEvent as FunctionEvent
from monitel.profiler.events import FunctionEventAvg as FunctionEventAvg
from monitel.profiler.execution_trace import ExecutionTraceObserver
from monitel.profiler.profiles import _KinetoProfile as _KinetoProfile
from monitel.profiler.profiles import profile, tensorboard_trace_handler
from monitel.profiler.ranges import record_function
from monitel.profiler.settings import (
    DeviceType,
    KinetoStepTracker,
    ProfilerAction,
    ProfilerActivity,
    kineto_available,
    schedule,
    supported_activities,
)
from monitel.profiler.settings import RecordScope as RecordScope
from monitel.profiler.settings import _ExperimentalConfig as _ExperimentalConfig
from monitel.profiler.settings import _optimizer_post_hook as _optimizer_post_hook
from monitel.profiler.settings import count_optimizer_steps as _count_optimizer_steps

__all__ = ["DeviceType", "ExecutionTraceObserver", "KinetoStepTracker", "ProfilerAction", "ProfilerActivity"]
__all__ += ["kineto_available", "profile", "record_function", "schedule", "supported_activities"]
__all__ += ["tensorboard_trace_handler"]

_supported_activities = supported_activities
_count_optimizer_steps()

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the two names of torch.optim that ``torch.profiler`` has too, which need torch."""
        if name in {"Optimizer", "register_optimizer_step_post_hook"}:
            from importlib import import_module

            try:
                return getattr(import_module("torch.optim.optimizer"), name)
            except ImportError as error:  # hasattr() expects an AttributeError
                raise AttributeError(f"{__name__}.{name} is torch's: {error}") from error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
