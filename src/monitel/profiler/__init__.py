"""Where the time of a training loop goes: the API of ``torch.profiler``, natively.

``from monitel.profiler import profile, record_function, schedule`` replaces the same from ``torch.profiler``.
"""

from monitel.profiler import itt as itt
from monitel.profiler import ranges as ranges
from monitel.profiler.activities import DeviceType, ProfilerActivity, kineto_available, supported_activities
from monitel.profiler.cycles import _KinetoProfile as _KinetoProfile
from monitel.profiler.experimental import _ExperimentalConfig as _ExperimentalConfig
from monitel.profiler.facade import profile
from monitel.profiler.observer import ExecutionTraceObserver
from monitel.profiler.ranges import record_function
from monitel.profiler.scheduling import ProfilerAction, schedule
from monitel.profiler.steps import KinetoStepTracker, install_optimizer_hook
from monitel.profiler.steps import _optimizer_post_hook as _optimizer_post_hook
from monitel.profiler.trace_handler import tensorboard_trace_handler

install_optimizer_hook()

__all__ = [
    "DeviceType",
    "ExecutionTraceObserver",
    "KinetoStepTracker",
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
