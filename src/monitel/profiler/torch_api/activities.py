"""Activities that a profile can record, by torch's names. Without torch these are ranges on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    CPU = 0
    CUDA = 1
    MKLDNN = 2
    OPENGL = 3
    OPENCL = 4
    IDEEP = 5
    HIP = 6
    FPGA = 7
    MAIA = 8
    XLA = 9
    Vulkan = 10
    Metal = 11
    XPU = 12
    MPS = 13
    MTIA = 19
    Meta = 14
    HPU = 15
    VE = 16
    Lazy = 17
    IPU = 18
    PrivateUse1 = 20


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
        RuntimeError: An activity cannot be recorded without torch.
        TypeError: An item is neither an activity nor a mapping of activities to names.
        ValueError: An activity is given twice.
    """
    wanted: set[ProfilerActivity] = set()
    kinds: dict[ProfilerActivity, set[str]] = {}
    for item in supported_activities() if activities is None else activities:
        if not isinstance(item, (ProfilerActivity, Mapping)):
            raise TypeError(f"Expected ProfilerActivity or dict, got {type(item)}")
        for activity in [item] if isinstance(item, ProfilerActivity) else item:
            if activity in wanted:
                raise ValueError(f"Activity {activity} specified more than once")
            wanted.add(activity)
            if isinstance(item, Mapping):
                kinds[activity] = set(item[activity])
    if not wanted:
        raise AssertionError("No valid profiler activities found")
    if missing := wanted - supported_activities():
        names = ", ".join(sorted(f"ProfilerActivity.{activity.name}" for activity in missing))
        raise RuntimeError(
            f"{names}: monitel.profiler records only ProfilerActivity.CPU; use torch.profiler.profile for activities "
            "of devices"
        )
    return wanted, kinds
