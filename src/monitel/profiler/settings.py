"""Activities, schedules, settings and step counts of profiles, by torch's names: without torch, ranges on the CPU."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, TypeAlias
from warnings import warn

from monitel.process.import_hook import AfterImport

#: The kinds of events that torch knows for ProfilerActivity.CPU. Ranges are USER_ANNOTATION.
_KINDS = {
    *("CPU_OP", "USER_ANNOTATION", "EXTERNAL_CORRELATION", "PYTHON_FUNCTION", "CPU_INSTANT_EVENT", "CUDA_RUNTIME"),
    *("CUDA_DRIVER", "XPU_RUNTIME", "XPU_DRIVER", "PRIVATEUSE1_RUNTIME", "PRIVATEUSE1_DRIVER"),
}
Activities: TypeAlias = Iterable["ProfilerActivity | Mapping[ProfilerActivity, Iterable[str]]"]
_OPTIMIZERS = "torch.optim.optimizer"


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
    """Return the requested activities, and for those given in a mapping the requested kinds of events."""
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


class ProfilerAction(Enum):
    """Action of a profile at a step, with torch's names and numbers.

    A schedule can return any action except DEVICE_STOPPED, which torch sets when a device stops collecting early.
    """

    NONE = 0  #: do not record
    WARMUP = 1  #: prepare to record
    RECORD = 2  #: record
    RECORD_AND_SAVE = 3  #: record; the trace is ready after this step
    DEVICE_STOPPED = 4  #: set only by torch


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a schedule of cycles. A cycle has ``wait`` idle, ``warmup`` preparing and ``active`` recorded steps.

    Args:
        wait: Idle steps at the beginning of a cycle.
        warmup: Steps between the idle and the recorded ones.
        active: Recorded steps; the trace is ready after the last one.
        repeat: Number of cycles; 0 means no limit.
        skip_first: Steps before the first cycle.
        skip_first_wait: If not 0, the first cycle has no idle steps.

    Returns:
        A function of the step number, for ``profile(schedule=...)``. It raises AssertionError for a negative step.

    Raises:
        AssertionError: A number is negative, or ``active`` is 0.

    Example:
        >>> from monitel.profiler import schedule
        >>> plan = schedule(wait=1, warmup=1, active=2, repeat=1)
        >>> [plan(step).name for step in range(5)]
        ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, active - 1, repeat, skip_first) < 0:
        raise AssertionError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} (need >= 0), "
            f"active={active} (need > 0), repeat={repeat} (need >= 0), skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warn("Profiler won't be using warmup, this can skew profiler results", stacklevel=2)
    cycle = wait + warmup + active
    offset = (wait if skip_first_wait else 0) - skip_first

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise AssertionError(f"Step must be non-negative. Got {step}.")
        if step < skip_first:
            return ProfilerAction.NONE
        done, position = divmod(step + offset, cycle)
        if position < wait or 0 < repeat <= done:
            return ProfilerAction.NONE
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if position < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


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


class KinetoStepTracker:
    """Counts steps by requester, with process-wide state. No part of monitel reads the counts.

    The current step is the largest count of any requester, and never decreases. Where the environment variable
    KINETO_USE_DAEMON is set, the steps of profiles are counted, and those of torch's optimizers, as torch does.

    Example:
        >>> from monitel.profiler import KinetoStepTracker
        >>> before = KinetoStepTracker.current_step()
        >>> KinetoStepTracker.increment_step("evaluation") - before
        1
        >>> KinetoStepTracker.erase_step_count("evaluation")
        True
    """

    _current_step = 0
    _step_dict: ClassVar[dict[str, int]] = defaultdict(int)

    @classmethod
    def init_step_count(cls, requester: str) -> None:
        """Start the count of a requester at the current step."""
        cls._step_dict[requester] = cls._current_step

    @classmethod
    def erase_step_count(cls, requester: str) -> bool:
        """Delete the count of a requester, and return whether there was one. The current step is unchanged."""
        return cls._step_dict.pop(requester, None) is not None

    @classmethod
    def increment_step(cls, requester: str) -> int:
        """Count one step of a requester, and return the current step."""
        if requester not in cls._step_dict:
            cls.init_step_count(requester)
        cls._step_dict[requester] += 1
        step = max(cls._step_dict.values())
        if step > cls._current_step + 1:
            warn(
                "Profiler step count has increased more than 1 - "
                f"current_step = {cls._current_step} step dict =  {cls._step_dict}",
                stacklevel=2,
            )
        cls._current_step = max(step, cls._current_step)
        return cls._current_step

    @classmethod
    def current_step(cls) -> int:
        """Return the largest count so far."""
        return cls._current_step


def _optimizer_post_hook(optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001  torch calls it so
    """Count a step of the requester "Optimizer"."""
    KinetoStepTracker.increment_step("Optimizer")


_optimizer_post_hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled steps are counted too


def steps_are_counted() -> bool:
    """Return whether the environment asks for counts of steps."""
    return bool(os.environ.get("KINETO_USE_DAEMON"))


def count_optimizer_steps() -> None:
    """Give torch's optimizers the hook if steps are counted: now, or as soon as torch is imported."""

    def register() -> None:
        import_module(_OPTIMIZERS).register_optimizer_step_post_hook(_optimizer_post_hook)

    if steps_are_counted():
        AfterImport(_OPTIMIZERS, register)
