"""Events: recorded ranges by torch's names, and lists of them, with averages by name, tables and stacks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from monitel.profiler.ranges import Arguments, Range, Track
from monitel.profiler.settings import DeviceType
from monitel.profiler.trace import Recorded, atomic_file, json_text, well_formed

STEP_NAME = "ProfilerStep"
_LISTS = ("stack", "kernels", "input_shapes", "concrete_inputs", "input_dtypes")
#: Other attributes of torch's events, as torch has them for ranges: values, and functions of the event.
_OTHERS: dict[str, Any] = {
    **{name: [] for name in (*_LISTS, "structured_input_shapes", "structured_input_strides")},
    **dict.fromkeys(("fwd_thread", "flow_id", "flow_type", "linked_correlation_id", "self_cuda_memory_usage"), 0),
    **{f"{whose}_memory_usage": 0 for whose in ("cpu", "self_cpu", "device", "self_device")},
    "flops": 0,
    **dict.fromkeys(("cuda_time", "cuda_time_total", "self_cuda_time_total"), 0.0),
    **dict.fromkeys(("device_time", "device_time_total", "self_device_time_total"), 0.0),
    **dict.fromkeys(("device_time_str", "device_time_total_str", "self_device_time_total_str"), "0.000us"),
    **dict.fromkeys(("python_id", "python_parent_id", "python_module_id", "node_id", "sequence_nr"), -1),
    **dict.fromkeys(("self_cpu_percent", "total_cpu_percent", "total_device_percent"), -1),
    **dict.fromkeys(("is_python_function", "flow_start", "is_async", "is_remote", "is_legacy"), False),
    "device_type": DeviceType.CPU,
    "scope": 7,  # torch's RecordScope.USER_SCOPE
    "is_user_annotation": True,
    "use_device": None,
    "overload_name": "",
    "activity_type": "user_annotation",
    "kwinputs": {},
    "metadata_json": "",
    "event_metadata": None,
    "cpu_time_str": lambda event: time_text(event.cpu_time),
    "cpu_time_total_str": lambda event: time_text(event.cpu_time_total),
    "self_cpu_time_total_str": lambda event: time_text(event.self_cpu_time_total),
    "external_id": attrgetter("id"),
    "device_index": lambda _event: os.getpid(),
    "device_resource_id": attrgetter("thread"),
}

_DEVICES = ("cuda", "xpu", "privateuse1")
_METRICS = [f"self_{device}_time_total" for device in ("cpu", *_DEVICES)]
_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0}
_HEADERS = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")
_COLUMN = 12
_SEPARATORS = str.maketrans(" ;\t\n\r", "_____")  # characters that separate frames or lines


class Interval(NamedTuple):
    """Start and end in microseconds since the first recorded cycle began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the duration in microseconds."""
        return self.end - self.start


class Timed:
    """Attributes that events and averages share. Those of devices, memory and operators are constants in ``_OTHERS``.

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

    def __getattr__(self, name: str) -> Any:
        if name not in _OTHERS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _OTHERS[name](self) if callable(_OTHERS[name]) else copy(_OTHERS[name])

    @property
    def cpu_time(self) -> float:
        """Mean time in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

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
        *("_covered_us", "args", "cpu_children", "cpu_parent", "finished", "id"),
        *("name", "step", "thread", "time_range", "trace_name"),
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
        self._covered_us = 0.0  # of a step: the time of ranges in its thread, which are not its children

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
        children = sum(child.cpu_time_total for child in self.cpu_children)
        return max(self.cpu_time_total - children - self._covered_us, 0.0)


def function_events(recorded: Iterable[Recorded], origin_ns: int, first: int = 0) -> list[FunctionEvent]:
    """Return the events of ranges, which are sorted by start, with parents and children; ``first`` is the first id."""
    events: list[FunctionEvent] = []
    by_range: dict[Range, FunctionEvent] = {}
    running: dict[Track, list[FunctionEvent]] = {}
    outermost = defaultdict[tuple[int, bool], list[FunctionEvent]](list)  # by thread, and whether they are steps
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
        else:
            is_step = source.track.task_name == "steps"
            others = outermost[event.thread, not is_step]
            others[:] = (each for each in others if each.time_range.end > start)
            for other in others:
                (event if is_step else other)._covered_us += min(end, other.time_range.end) - start
            outermost[event.thread, is_step].append(event)
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


_Event = TypeVar("_Event", bound=Timed)


class FunctionEventAvg(Timed):
    """Sums over all events of one name; ``cpu_time`` is the mean."""

    __slots__ = ("count", "cpu_children", "cpu_parent", "cpu_time_total", "key", "self_cpu_time_total")

    def __init__(self, key: str = "") -> None:
        self.key = key  # without one that of the first event
        self.count = 0
        self.cpu_time_total = 0.0
        self.self_cpu_time_total = 0.0
        self.cpu_parent: FunctionEvent | None = None  # of the first event, as its children
        self.cpu_children: list[FunctionEvent] = []

    def add(self, other: Timed) -> FunctionEventAvg:
        """Add an event or another average, and return self."""
        if not self.count:
            self.key = self.key or other.key
            self.cpu_parent = getattr(other, "cpu_parent", None)
            self.cpu_children = getattr(other, "cpu_children", [])
        self.count += other.count
        self.cpu_time_total += other.cpu_time_total
        self.self_cpu_time_total += other.self_cpu_time_total
        return self

    __iadd__ = add


class EventList(list[_Event]):
    """A list of events or of averages.

    Example:
        >>> from monitel.profiler import profile, record_function
        >>> with profile() as prof:
        ...     for _ in range(3):
        ...         with record_function("forward"):
        ...             pass
        >>> average = prof.key_averages()[0]
        >>> average.key, average.count
        ('forward', 3)
        >>> print(prof.key_averages().table(sort_by="cpu_time_total"))
        -------...
           Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    # of Calls...
        -------...
        forward...
    """

    def __init__(
        self,
        events: Iterable[_Event] = (),
        *,
        use_device: str | None = None,  # noqa: ARG002  torch's
        profile_memory: bool = False,  # noqa: ARG002  torch's
        with_flops: bool = False,  # noqa: ARG002  torch's
    ) -> None:
        super().__init__(events)

    @property
    def self_cpu_time_total(self) -> float:
        """Sum of ``self_cpu_time_total`` of all events, in microseconds."""
        return sum(event.self_cpu_time_total for event in self)

    def key_averages(
        self,
        group_by_input_shapes: bool = False,  # noqa: ARG002  torch's
        group_by_stack_n: int = 0,  # noqa: ARG002  torch's
        group_by_overload_name: bool = False,  # noqa: ARG002  torch's
    ) -> EventList[FunctionEventAvg]:
        """Return sums over the events of each name, in order of the first event. The arguments have no effect."""
        averages: dict[str, FunctionEventAvg] = {}
        for event in self:
            averages.setdefault(event.key, FunctionEventAvg(event.key)).add(event)
        return EventList(averages.values())

    def total_average(self) -> FunctionEventAvg:
        """Return the sums over all events, named ``Total``."""
        total = FunctionEventAvg("Total")
        for event in self:
            total.add(event)
        return total

    def table(  # noqa: PLR0917  torch accepts them by position
        self,
        sort_by: str | None = None,
        row_limit: int | None = 100,
        max_src_column_width: int = 75,  # noqa: ARG002  torch's
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int = 80,  # noqa: ARG002  torch's
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Return a table in torch's layout.

        Args:
            sort_by: Attribute to sort by, in descending order; None keeps the order of the list.
            row_limit: Maximum number of rows; -1 or None for all.
            max_src_column_width: Accepted without effect.
            max_name_column_width: Maximum length of names, longer ones are cut; None for no limit.
            max_shapes_column_width: Accepted without effect.
            header: Line above the table.
            top_level_events_only: Omit the events that have a parent.
            time_unit: Unit of all times, ``"s"``, ``"ms"`` or ``"us"``; by default chosen for each time.

        Raises:
            AttributeError: The events have no attribute ``sort_by``.
        """
        if not self:
            return ""
        events = list(self) if sort_by is None else sorted(self, key=lambda each: _metric(each, sort_by), reverse=True)
        width = max(len(event.key) for event in events) + 4
        width = width if max_name_column_width is None else min(width, max_name_column_width)
        widths = [width, *[_COLUMN] * len(_HEADERS)]
        rule = "".join("-" * each + "  " for each in widths)
        whole = sum(event.self_cpu_time_total for event in events)
        if top_level_events_only:
            events = [event for event in events if getattr(event, "cpu_parent", None) is None]
        lines = []
        if header is not None:
            lines += ["=" * (len(rule) - 2), header]
        if top_level_events_only:
            lines += ["=" * (len(rule) - 2), "This report only display top-level ops statistics"]
        lines += [rule, _row(("Name", *_HEADERS), widths), rule]
        for event in events[: row_limit if row_limit is not None and row_limit >= 0 else None]:
            cells = (
                _shortened(event.key, max_name_column_width),
                _share(event.self_cpu_time_total, whole),
                _time(event.self_cpu_time_total, time_unit),
                _share(event.cpu_time_total, whole),
                _time(event.cpu_time_total, time_unit),
                _time(event.cpu_time, time_unit),
                event.count,
            )
            lines.append(_row(cells, widths))
        return "\n".join([*lines, rule, f"Self CPU time total: {_time(whole, time_unit)}", ""])

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events for chrome://tracing and Perfetto, in the list format of torch's method.

        Averages, which torch cannot write, are shown one after the other, with their total times.
        """
        end = 0.0
        with atomic_file(path) as file:
            for number, event in enumerate(self):
                if isinstance(event, FunctionEvent):
                    name, start, thread = event.trace_name, event.time_range.start, event.thread
                else:
                    name, start, thread = event.key, end, 0
                end = start + event.cpu_time_total
                line = {"name": name, "ph": "X", "ts": start, "dur": event.cpu_time_total, "tid": thread}
                file.write(f"{',' if number else '['}\n{json_text({**line, 'pid': 'CPU functions', 'args': {}})}")
            file.write("\n]\n" if self else "[]\n")

    def supported_export_stacks_metrics(self) -> list[str]:
        """Return the metrics that :meth:`export_stacks` accepts."""
        return list(_METRICS)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write one line ``outer;inner microseconds`` for each path of nested ranges, as flame graph tools read it.

        Raises:
            FileNotFoundError: The folder does not exist.
            ValueError: The metric is not one of :meth:`supported_export_stacks_metrics`.
        """
        if metric not in _METRICS:
            raise ValueError(f"metric should be one of: {_METRICS}")
        totals: dict[str, float] = {}
        for event in self:
            frames, around = [event.key], getattr(event, "cpu_parent", None)
            while around is not None:
                frames.append(around.key)
                around = around.cpu_parent
            line = ";".join(well_formed(frame).translate(_SEPARATORS) for frame in reversed(frames))
            totals[line] = totals.get(line, 0.0) + _metric(event, metric)
        with atomic_file(path) as file:
            file.writelines(f"{line} {int(total)}\n" for line, total in totals.items() if int(total) > 0)

    def __str__(self) -> str:
        return self.table()


def _metric(event: Timed, name: str) -> Any:
    for device in _DEVICES:
        name = name.replace(device, "device")
    return getattr(event, name)


def _shortened(name: str, longest: int | None) -> str:
    name = well_formed(name)
    return name if longest is None or len(name) < longest - 3 else f"{name[: longest - 3]}..."


def _share(part: float, whole: float) -> str:
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def _time(microseconds: float, unit: str | None) -> str:
    return f"{microseconds / _UNITS[unit]:.3f}{unit}" if unit in _UNITS else time_text(microseconds)


def _row(cells: tuple[object, ...], widths: list[int]) -> str:
    return "".join(f"{cell!s:>{width}}  " for cell, width in zip(cells, widths, strict=True))
