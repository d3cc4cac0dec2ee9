"""Recording in cycles, and what can be had of the last one: torch's low-level profile."""

from __future__ import annotations

import os
import time
from copy import copy
from typing import TYPE_CHECKING, NoReturn, Protocol
from warnings import warn

from monitel.profiler.activities import ProfilerActivity, parsed
from monitel.profiler.chrome_trace import OWN_KEYS, write_chrome_trace
from monitel.profiler.event_list import EventList, FunctionEventAvg
from monitel.profiler.function_events import FunctionEvent, function_events
from monitel.profiler.json_text import checked, json_text
from monitel.profiler.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from monitel.profiler.activities import Activities
    from monitel.profiler.experimental import _ExperimentalConfig
    from monitel.profiler.recording import Recorded

_LABELS = "USER_ANNOTATION"  # what libkineto calls ranges
_AT_ONCE = 256  # ranges between two looks at the clock
_warned: set[str] = set()


class TraceObserver(Protocol):
    """What ``execution_trace_observer`` may be: :class:`ExecutionTraceObserver`, or anything with its methods."""

    def start(self) -> None:
        """A cycle begins to be recorded."""

    def stop(self) -> None:
        """It was recorded."""

    def cleanup(self) -> None:
        """The profile is left."""


class _KinetoProfile:
    """Records without a schedule: :class:`profile` is this with steps, by torch's name. Its arguments are the same."""

    def __init__(
        self,
        *,
        activities: Activities | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: TraceObserver | None = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        self.activities, self.activity_filters = parsed(activities)
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_flops = with_flops
        self.with_modules = with_modules
        self.experimental_config = _settled(experimental_config, with_stack=with_stack)
        self.execution_trace_observer = execution_trace_observer
        self.acc_events = acc_events
        self.custom_trace_id_callback = custom_trace_id_callback
        self.post_processing_timeout_s = post_processing_timeout_s
        self.use_device: str | None = None
        self.preset_metadata: dict[str, str] = {}
        self._early_metadata: dict[str, str] = {}
        self._prepared: Recording | None = None
        self._cycles: list[Recording] = []  # the last one; with acc_events all of them
        self._events: EventList[FunctionEvent] | None = None
        for option in self._options():
            _warn_once(f"{option} has no source without torch: the trace notes it, and nothing is recorded for it")

    def start(self) -> None:
        """Begin to record; once more, a warning and no change."""
        if not self._running():
            self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Record no more."""
        self.stop_trace()

    def prepare_trace(self) -> None:
        """Make the next cycle's trace id. What was recorded before is kept until :meth:`start_trace`.

        Raises:
            TypeError: The callback for trace ids gave no str.
            ValueError: A negative ``post_processing_timeout_s``.
        """
        if self.post_processing_timeout_s is not None and self.post_processing_timeout_s < 0:
            raise ValueError("post_processing_timeout_s must be non-negative")
        if self._cycles and not self.acc_events:
            _warn_once(
                "Warning: Profiler clears events at the end of each cycle. Only events from the current cycle will be "
                "reported. To keep events across cycles, set acc_events=True."
            )
        trace_id = self.custom_trace_id_callback() if self.custom_trace_id_callback else os.urandom(16).hex().upper()
        if not isinstance(trace_id, str):
            raise TypeError(f"custom_trace_id_callback must return a str, got {type(trace_id).__qualname__}")
        config = self.experimental_config
        self._prepared = Recording(trace_id, gc_pauses=config is not None and config.record_python_gc_info)

    def start_trace(self) -> None:
        """Begin to record; the cycle before is forgotten, unless ``acc_events`` keeps it."""
        if self._running():
            warn("Profiler is already running: it goes on", stacklevel=2)
            return
        if self._prepared is None:
            if not self._cycles:
                raise AssertionError("Profiler must be initialized before starting trace")
            self.prepare_trace()
        assert self._prepared is not None
        recording, self._prepared, self._events = self._prepared, None, None
        if self.execution_trace_observer:
            self.execution_trace_observer.start()
        recording.metadata = {**dict.fromkeys(self._options(), "1"), **self.preset_metadata, **self._early_metadata}
        self._early_metadata = {}
        self._cycles = [*(self._cycles if self.acc_events else ()), recording]
        recording.start()
        if _LABELS not in self.activity_filters.get(ProfilerActivity.CPU, {_LABELS}):
            recording.toggle(on=False)

    def stop_trace(self) -> None:
        """Record no more. What still runs in any thread is recorded up to now."""
        if self.execution_trace_observer:
            self.execution_trace_observer.stop()
        if not self._cycles and self._prepared is None:
            raise AssertionError("Profiler must be initialized before stopping trace")
        if not self._running():
            warn("Profiler is not running: there is nothing to stop", stacklevel=2)
            return
        self._cycles[-1].stop()

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:  # noqa: ARG002  there is one way
        """Write the trace of the last cycle, for Perfetto, chrome://tracing and TensorBoard; as often as wanted.

        The file is there as a whole or not at all. While it is recorded, the trace is what there is so far. A
        million ranges take some seconds, and say how far they are where standard error is a terminal.

        Args:
            path: The file; compressed where it ends with ``.gz``.
            use_python_export: Without effect: there is one way to write a trace.

        Raises:
            AssertionError: Nothing was started.
            OSError: It cannot be written; FileNotFoundError where the folder is not there.
        """
        write_chrome_trace(self._last("exporting chrome trace"), path)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write ``outer;inner microseconds`` for each path of nested ranges: what makes a flame graph.

        Raises:
            AssertionError: Nothing was started, or ``with_stack`` is not set.
            ValueError: Another metric than ``self_{cpu,cuda,xpu,privateuse1}_time_total``.
        """
        self._last("exporting stacks")
        if not self.with_stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self.events().export_stacks(path, metric)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Leave out the ranges that begin from now on, or take them in again; only while it records.

        Args:
            enable: Take them in.
            activities: Without ``ProfilerActivity.CPU`` nothing changes.
        """
        if self._running() and ProfilerActivity.CPU in set(activities):
            self._cycles[-1].toggle(on=enable)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> EventList[FunctionEventAvg]:
        """The events by name: how often, and how long together. The grouping by anything else has no effect."""
        self._last("getting key averages")
        return self.events().key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def events(self) -> EventList[FunctionEvent]:
        """The ranges of the last cycle by start, with ``acc_events`` of all cycles; those so far while it records.

        Raises:
            AssertionError: Nothing was started.
            RuntimeError: ``trace_only`` is set.
        """
        self._last("accessing events")
        if self.experimental_config is not None and self.experimental_config.trace_only:
            raise RuntimeError(
                "events() is not available when trace_only=True in ExperimentalConfig. "
                "Use export_chrome_trace() instead."
            )
        if self._events is not None:
            return self._events
        events: EventList[FunctionEvent] = EventList()
        for cycle in self._cycles:
            events += function_events(self._in_time(cycle), self._cycles[0].start_ns, len(events))
        if not self._running():
            self._events = events
        return events

    def add_metadata(self, key: str, value: str) -> None:
        """Put a text at the top of the trace; before the start, of the next one.

        Raises:
            ValueError: A key that the trace has of its own, such as ``traceEvents``.
        """
        self._add(key, json_text(str(value)))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Put a value at the top of the trace, given as JSON; before the start, of the next one.

        Raises:
            ValueError: It is no JSON; or a key that the trace has of its own.
        """
        self._add(key, _checked(key, value))

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Put a value at the top of every trace that is started from now on, given as JSON.

        Raises:
            ValueError: As :meth:`add_metadata_json`.
        """
        self.preset_metadata[_free(key)] = _checked(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Ask ``callback()`` for the id of the next cycle's trace, and of those after it."""
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """The id of the trace that is prepared, or else of the last one; None before there was any."""
        known = [*self._cycles, self._prepared]
        return next((each.trace_id for each in reversed(known) if each is not None), None)

    def export_memory_timeline(self, path: str, device: str | None = None) -> NoReturn:  # noqa: ARG002  torch's signature
        """Raise: allocations have no source without torch, and torch has deprecated this."""
        warn("`export_memory_timeline` is deprecated", FutureWarning, stacklevel=2)
        missing = [name for name in ("record_shapes", "profile_memory", "with_stack") if not getattr(self, name)]
        if missing:
            raise ValueError(f"{', '.join(f'{name}=True' for name in missing)} required for memory profiling.")
        raise RuntimeError("allocations have no source without torch: use torch.profiler.profile")

    def _add(self, key: str, text: str) -> None:
        target = self._cycles[-1].metadata if self._cycles and self._prepared is None else self._early_metadata
        target[_free(key)] = text

    def _options(self) -> list[str]:
        names = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        return [name for name in names if getattr(self, name)]

    def _running(self) -> bool:
        return bool(self._cycles) and self._cycles[-1].running

    def _last(self, doing: str) -> Recording:
        recording = self._cycles[-1] if self._cycles else self._prepared
        if recording is None:
            raise AssertionError(f"Profiler must be initialized before {doing}")
        return recording

    def _in_time(self, recording: Recording) -> Iterator[Recorded]:
        limit = self.post_processing_timeout_s
        deadline = None if limit is None else time.monotonic() + limit
        for done, each in enumerate(recording):
            if deadline is not None and done % _AT_ONCE == 0 and time.monotonic() >= deadline:
                warn(f"events() has {done} of {len(recording)} ranges: it took {limit} s", stacklevel=3)
                return
            yield each


def _settled(config: _ExperimentalConfig | None, *, with_stack: bool) -> _ExperimentalConfig | None:
    if config is None or not config.trace_only or not with_stack:
        return config
    warn(
        "trace_only=True is incompatible with with_stack=True (stack traces require event post-processing). "
        "Disabling trace_only.",
        stacklevel=4,
    )
    config = copy(config)
    config.trace_only = False
    return config


def _free(key: str) -> str:
    if key in OWN_KEYS:
        raise ValueError(f"metadata must not be named {key!r}: the trace has it of its own")
    return key


def _checked(key: str, value: str) -> str:
    try:
        return checked(value)
    except ValueError as error:
        raise ValueError(f"metadata {key!r} must be valid JSON, got {value!r:.80}: {error}") from None


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warn(message, stacklevel=4)
