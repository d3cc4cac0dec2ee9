"""What a profile records: by torch's names, of which ranges on the CPU are what there is without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias


class _Numbered(Enum):
    """Named numbers, as pybind's enums are: ``int()`` works, ``==`` with an int does not."""

    def __index__(self) -> int:
        return int(self.value)


class ProfilerActivity(_Numbered):
    """What can be recorded; the names and numbers are torch's."""

    CPU = 0
    XPU = 1
    MTIA = 4
    CUDA = 2
    HPU = 3
    PrivateUse1 = 5


class DeviceType(_Numbered):
    """Where something ran; the names and numbers are torch's. What monitel records ran on the CPU."""

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
    """What a profile can record here: the CPU, on which ranges run.

    Example:
        >>> from monitel.profiler import supported_activities
        >>> supported_activities()
        {<ProfilerActivity.CPU: 0>}
    """
    return {ProfilerActivity.CPU}


def kineto_available() -> bool:
    """Whether traces can be written: yes. By torch's name; libkineto is not used."""
    return True


def parsed(activities: Activities | None) -> tuple[set[ProfilerActivity], dict[ProfilerActivity, set[str]]]:
    """What is asked for, and which kinds of it where that was said.

    Raises:
        AssertionError: Nothing is asked for.
        RuntimeError: Something that has no source without torch.
        TypeError: Neither an activity nor a mapping of activities to names.
        ValueError: An activity twice.
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
            f"{names}: monitel.profiler records ranges on the CPU; what runs on a device is recorded by "
            "torch.profiler.profile, which needs torch and the device"
        )
    return wanted, kinds
