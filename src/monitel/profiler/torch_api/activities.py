"""Recordable activities and experimental settings of a profile, by torch's names: without torch, ranges on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


class _Numbered(Enum):
    """Enum members with numbers, like pybind's: ``int()`` works, ``==`` with an int does not."""

    def __index__(self) -> int:
        return int(self.value)


class ProfilerActivity(_Numbered):
    """Activities, with torch's names and numbers. Only CPU can be recorded."""

    CPU = 0
    XPU = 1
    MTIA = 4
    CUDA = 2
    HPU = 3
    PrivateUse1 = 5


class DeviceType(_Numbered):
    """Device types, with torch's names and numbers. Events of monitel have CPU."""

    CPU, CUDA, MKLDNN, OPENGL, OPENCL, IDEEP, HIP, FPGA, MAIA, XLA, Vulkan, Metal, XPU, MPS = range(14)
    Meta, HPU, VE, Lazy, IPU, MTIA, PrivateUse1 = range(14, 21)


class RecordScope(_Numbered):
    """Origins of events, with torch's names and numbers. Events of monitel have USER_SCOPE."""

    FUNCTION, BACKWARD_FUNCTION, TORCHSCRIPT_FUNCTION, KERNEL_FUNCTION_DTYPE, CUSTOM_CLASS = range(5)
    BUILD_FEATURE, LITE_INTERPRETER, USER_SCOPE, STATIC_RUNTIME_OP, STATIC_RUNTIME_MODEL = range(5, 10)


#: The kinds of events that torch knows for ProfilerActivity.CPU. Ranges are USER_ANNOTATION.
_KINDS = {
    *("CPU_OP", "USER_ANNOTATION", "EXTERNAL_CORRELATION", "PYTHON_FUNCTION", "CPU_INSTANT_EVENT", "CUDA_RUNTIME"),
    *("CUDA_DRIVER", "XPU_RUNTIME", "XPU_DRIVER", "PRIVATEUSE1_RUNTIME", "PRIVATEUSE1_DRIVER"),
}
Activities: TypeAlias = Iterable["ProfilerActivity | Mapping[ProfilerActivity, Iterable[str]]"]


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that a profile can record: ``{ProfilerActivity.CPU}``.

    Example:
        >>> from monitel.profiler import supported_activities
        >>> supported_activities()
        {<ProfilerActivity.CPU: 0>}
    """
    return {ProfilerActivity.CPU}


def kineto_available() -> bool:
    """Return True: traces can be written, without libkineto."""
    return True


def parse_activities(activities: Activities | None) -> tuple[set[ProfilerActivity], dict[ProfilerActivity, set[str]]]:
    """Return the requested activities, and for those given in a mapping the requested kinds of events.

    Raises:
        AssertionError: No activity is requested.
        RuntimeError: An activity cannot be recorded without torch, or a kind of events is unknown.
        TypeError: An item is neither an activity nor a mapping of activities to names.
        ValueError: An activity is given twice.
    """
    items = list(supported_activities() if activities is None else activities)
    given = [activity for item in items for activity in (item if isinstance(item, Mapping) else [item])]
    if not any(isinstance(each, ProfilerActivity) for each in given):
        raise AssertionError("No valid profiler activities found")
    wanted: set[ProfilerActivity] = set()
    for activity in given:
        if not isinstance(activity, ProfilerActivity):
            raise TypeError(f"Expected ProfilerActivity or dict, got {type(activity)}")
        if activity in wanted:
            raise ValueError(f"Activity {activity} specified more than once")
        wanted.add(activity)
    if missing := wanted - supported_activities():
        names = ", ".join(sorted(f"ProfilerActivity.{activity.name}" for activity in missing))
        raise RuntimeError(
            f"{names}: monitel.profiler records only ProfilerActivity.CPU; use torch.profiler.profile for activities "
            "of devices"
        )
    kinds = {key: set(names) for item in items if isinstance(item, Mapping) for key, names in item.items()}
    for kind in kinds.get(ProfilerActivity.CPU, set()) - _KINDS:
        if not isinstance(kind, str):
            raise TypeError(f"Expected the name of an activity type, got {type(kind)}")
        raise RuntimeError(
            f"Unknown or non-member activity type name: {kind!r}; expected one of {', '.join(sorted(_KINDS))}"
        )
    return wanted, kinds


@dataclass
class _ExperimentalConfig:
    """Settings for ``profile(experimental_config=...)``, with the parameters of torch's ``_ExperimentalConfig``.

    Args:
        record_python_gc_info: Record the pauses of Python's garbage collector as ranges named ``Python GC``.
        profiler_metrics: Accepted without effect, like all other settings. Ranges of all threads are always recorded.
    """

    profiler_metrics: Sequence[str] = field(default_factory=list)
    profiler_measure_per_kernel: bool = False
    verbose: bool = False
    performance_events: Sequence[str] = field(default_factory=list)
    enable_cuda_sync_events: bool = False
    adjust_profiler_step: bool = False
    disable_external_correlation: bool = False
    profile_all_threads: bool = False
    capture_overload_names: bool = False
    record_python_gc_info: bool = False
    expose_kineto_event_metadata: bool = False
    custom_profiler_config: str = ""
    adjust_timestamps: bool = False
    trace_only: bool = False
