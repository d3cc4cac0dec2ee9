"""Events: recorded ranges with times in microseconds, parents and children, by torch's names."""

from __future__ import annotations

import os
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from monitel.profiler.torch_api.activities import DeviceType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel.profiler.ranges import Range, Track
    from monitel.profiler.ranges.annotation import Arguments
    from monitel.profiler.trace.recording import Recorded

STEP_NAME = "ProfilerStep"
_LISTS = ("stack", "kernels", "input_shapes", "concrete_inputs", "input_dtypes")
#: Other attributes of torch's events, as torch has them for ranges: values, and functions of the event.
_OTHERS: dict[str, Any] = {
    **{name: [] for name in (*_LISTS, "structured_input_shapes", "structured_input_strides")},
    **dict.fromkeys(("fwd_thread", "flow_id", "flow_type", "linked_correlation_id", "self_cuda_memory_usage"), 0),
    **dict.fromkeys(("cuda_time", "cuda_time_total", "self_cuda_time_total"), 0.0),
    **dict.fromkeys(("device_time_str", "device_time_total_str", "self_device_time_total_str"), "0.000us"),
    **dict.fromkeys(("python_id", "python_parent_id", "python_module_id"), -1),
    **dict.fromkeys(("self_cpu_percent", "total_cpu_percent", "total_device_percent"), -1),
    **dict.fromkeys(("is_python_function", "flow_start"), False),
    "activity_type": "user_annotation",
    "kwinputs": {},
    "metadata_json": "",
    "event_metadata": None,
    "external_id": attrgetter("id"),
    "device_index": lambda _event: os.getpid(),
    "device_resource_id": attrgetter("thread"),
}


class Interval(NamedTuple):
    """Start and end in microseconds since the first recorded cycle began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the duration in microseconds."""
        return self.end - self.start


class Timed:
    """Attributes that events and averages share. Those of devices, memory and operators are constants.

    Attributes:
        count: Number of events.
        cpu_time_total: Total time in microseconds.
        self_cpu_time_total: Total time in microseconds, excluding the ranges within.
    """

    __slots__ = ()
    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float

    device_type: ClassVar[DeviceType] = DeviceType.CPU
    node_id: ClassVar[int] = -1
    scope: ClassVar[int] = 7  # torch's RecordScope.USER_SCOPE
    sequence_nr: ClassVar[int] = -1
    is_user_annotation: ClassVar[bool] = True
    is_async: ClassVar[bool] = False
    is_remote: ClassVar[bool] = False
    is_legacy: ClassVar[bool] = False
    use_device: ClassVar[str | None] = None
    overload_name: ClassVar[str] = ""
    stack: list[str]
    input_shapes: list[str]
    flops: ClassVar[int] = 0
    device_time: ClassVar[float] = 0.0
    device_time_total: ClassVar[float] = 0.0
    self_device_time_total: ClassVar[float] = 0.0
    cpu_memory_usage: ClassVar[int] = 0
    self_cpu_memory_usage: ClassVar[int] = 0
    device_memory_usage: ClassVar[int] = 0
    self_device_memory_usage: ClassVar[int] = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _OTHERS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return _OTHERS[name](self) if callable(_OTHERS[name]) else copy(_OTHERS[name])

    @property
    def cpu_time(self) -> float:
        """Mean time in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def cpu_time_str(self) -> str:
        """``cpu_time`` as text with a unit."""
        return time_text(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        """``cpu_time_total`` as text with a unit."""
        return time_text(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """``self_cpu_time_total`` as text with a unit."""
        return time_text(self.self_cpu_time_total)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.key!r} count={self.count} "
            f"cpu_time={self.cpu_time_str} self_cpu_time={self.self_cpu_time_total_str}>"
        )


class FunctionEvent(Timed):
    """A range, as ``profile.events()`` returns it.

    Attributes:
        id: Index among the events.
        name: Name; ``ProfilerStep*`` for every step.
        trace_name: Name, with the step's number for steps.
        args: Details as given to ``record_function``.
        step: ``monitel.get_step()`` when it began.
        time_range: Start, end and ``elapsed_us()``, in microseconds since the first recorded cycle began.
        thread: Native id of its thread.
        finished: False if it still ran when the recording stopped; its end is the stop.
        cpu_parent: Innermost event of the same thread or task that contains it, or None.
        cpu_children: Events whose ``cpu_parent`` is this event.
    """

    __slots__ = (
        "args",
        "cpu_children",
        "cpu_parent",
        "finished",
        "id",
        "name",
        "step",
        "thread",
        "time_range",
        "trace_name",
    )
    count = 1

    def __init__(self, number: int, recorded: Recorded, origin_ns: int) -> None:
        source, start_ns, end_ns, self.finished = recorded
        self.id = number
        self.trace_name = source.name
        self.name = f"{STEP_NAME}*" if source.name.startswith(f"{STEP_NAME}#") else source.name
        self.args: Arguments = source.args
        self.step = source.step
        self.time_range = Interval((start_ns - origin_ns) / 1000, (end_ns - origin_ns) / 1000)
        self.thread = source.track.thread_id
        self.cpu_parent: FunctionEvent | None = None
        self.cpu_children: list[FunctionEvent] = []

    @property
    def key(self) -> str:  # type: ignore[override]  # a variable in Timed
        """Name by which averages group events."""
        return self.name

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]  # a variable in Timed
        """Duration in microseconds."""
        return self.time_range.elapsed_us()

    @property
    def self_cpu_time_total(self) -> float:  # type: ignore[override]  # a variable in Timed
        """Duration in microseconds, excluding the ranges within."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)


def function_events(recorded: Iterable[Recorded], origin_ns: int, first: int = 0) -> list[FunctionEvent]:
    """Return the events of a recording, with parents and children.

    Args:
        recorded: Ranges by start.
        origin_ns: Monotonic time that becomes 0.
        first: Index of the first event.
    """
    events: list[FunctionEvent] = []
    by_range: dict[Range, FunctionEvent] = {}
    running: dict[Track, list[FunctionEvent]] = {}
    for number, each in enumerate(recorded, first):
        source = each[0]
        event = by_range[source] = FunctionEvent(number, each, origin_ns)
        around = source.parent
        while around is not None and not _contains(by_range.get(around), around, event, source):
            around = around.parent
        # A range that was recorded after its end, as an optimizer's, is not the parent of the ranges that it contains.
        start, end = event.time_range
        earlier = [other for other in running.get(source.track, []) if other.time_range.end > start]
        running[source.track] = [*earlier, event]
        candidates = [other for other in earlier if end <= other.time_range.end]
        if around is not None:
            candidates.append(by_range[around])
        if candidates:
            event.cpu_parent = parent = max(candidates, key=lambda other: other.id)
            parent.cpu_children.append(event)
        events.append(event)
    return events


def _contains(outer: FunctionEvent | None, around: Range, inner: FunctionEvent, source: Range) -> bool:
    return outer is not None and around.track is source.track and inner.time_range.end <= outer.time_range.end


def time_text(microseconds: float) -> str:
    """Return a time as text, in s, ms or us."""
    if microseconds >= 1e6:  # noqa: PLR2004  a second
        return f"{microseconds / 1e6:.3f}s"
    if microseconds >= 1e3:  # noqa: PLR2004  a millisecond
        return f"{microseconds / 1e3:.3f}ms"
    return f"{microseconds:.3f}us"
