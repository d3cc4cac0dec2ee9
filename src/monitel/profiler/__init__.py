"""Profiler for training loops: the API of ``torch.profiler`` without torch.

To use it, replace ``from torch.profiler import ...`` by ``from monitel.profiler import ...``. The parts:

* ``ranges``: named stretches of time, and subscriptions to them (:mod:`monitel.profiler.ranges`, public)
* ``trace``: recordings of ranges, and trace files
* ``torch_api``: the classes and functions of ``torch.profiler``
"""

from monitel.profiler import itt as itt
from monitel.profiler import ranges as ranges
from monitel.profiler.ranges import record_function
from monitel.profiler.torch_api.activities import DeviceType, ProfilerActivity, kineto_available, supported_activities
from monitel.profiler.torch_api.execution_trace import ExecutionTraceObserver
from monitel.profiler.torch_api.experimental import _ExperimentalConfig as _ExperimentalConfig
from monitel.profiler.torch_api.kineto_profile import _KinetoProfile as _KinetoProfile
from monitel.profiler.torch_api.profile import profile
from monitel.profiler.torch_api.schedule import ProfilerAction, schedule
from monitel.profiler.torch_api.step_tracker import KinetoStepTracker
from monitel.profiler.torch_api.step_tracker import _optimizer_post_hook as _optimizer_post_hook
from monitel.profiler.torch_api.trace_handler import tensorboard_trace_handler

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
