"""Profiles: cycles of recording, their results, and the schedules that choose the steps of a training loop."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from warnings import warn

from monitel.process.launcher import launch_attributes
from monitel.profiler.events import STEP_NAME, EventList, FunctionEvent, FunctionEventAvg, function_events
from monitel.profiler.execution_trace import ExecutionTraceObserver
from monitel.profiler.ranges import record_function
from monitel.profiler.settings import (
    Activities,
    KinetoStepTracker,
    ProfilerAction,
    ProfilerActivity,
    _ExperimentalConfig,
    parse_activities,
    steps_are_counted,
)
from monitel.profiler.trace import RESERVED_KEYS, Recorded, Recording, json_text, one_line, write_chrome_trace

_log = logging.getLogger("monitel.profiler")

_USER_ANNOTATION = "USER_ANNOTATION"  # libkineto's name for ranges
_NO_EFFECT = "records nothing without torch; the option is only noted in the trace"
_EFFECTS = {"with_stack": "records no Python stacks without torch; export_stacks() writes the nesting of ranges"}
_RANGES_PER_CHECK = 256  # ranges between two checks of the timeout
_warned: set[str] = set()
_SCHEDULING = ("schedule", "on_trace_ready", "use_cuda")  # options that only profile has
_NONE, _WARMUP, _RECORD, _SAVE = list(ProfilerAction)[:4]
_RECORDING = (_RECORD, _SAVE)
_INCORRECT = {(_WARMUP, _NONE), (_RECORD, _NONE), (_RECORD, _WARMUP)}


class _KinetoProfile:
    """Records without a schedule. :class:`profile` adds the schedule and describes the arguments.

    Methods that need a recording raise AssertionError before it is prepared or started.
    """

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
        execution_trace_observer: ExecutionTraceObserver | None = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        self.activities, self.activity_filters = parse_activities(activities)
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_flops = with_flops
        self.with_modules = with_modules
        self.experimental_config = experimental_config
        self.execution_trace_observer = execution_trace_observer
        self.acc_events = acc_events
        self.custom_trace_id_callback = custom_trace_id_callback
        self.post_processing_timeout_s = post_processing_timeout_s
        self.use_device: str | None = None
        self.preset_metadata: dict[str, str] = {}
        self._early_metadata: dict[str, str] = {}
        self._prepared: Recording | None = None
        self._cycles: list[Recording] = []  # only the last one, unless acc_events is set
        self._events: EventList[FunctionEvent] | None = None
        for option in self._options():
            _warn_once(f"{option}=True {_EFFECTS.get(option, _NO_EFFECT)}")

    def start(self) -> None:
        """Start recording. If the profile is already running, warn and change nothing."""
        if not self._running():
            self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Stop recording."""
        self.stop_trace()

    def prepare_trace(self) -> None:
        """Create the trace id of the next cycle. The last cycle is kept until :meth:`start_trace`.

        Raises:
            TypeError: ``custom_trace_id_callback`` did not return a str.
            ValueError: ``post_processing_timeout_s`` is negative.
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
        """Start recording a cycle, and discard the last cycle unless ``acc_events`` is set."""
        if self._running():
            warn("Profiler is already running: the call has no effect", stacklevel=2)
            return
        if self._prepared is None:
            if not self._cycles:
                raise AssertionError("Profiler must be initialized before starting trace")
            self.prepare_trace()
        assert self._prepared is not None
        recording, self._prepared, self._events = self._prepared, None, None
        if self.execution_trace_observer:
            self.execution_trace_observer.start()
        recording.metadata = dict.fromkeys(self._options(), "1")
        if info := _distributed_info():
            recording.metadata["distributedInfo"] = one_line(json_text(info))
        recording.metadata |= {**self.preset_metadata, **self._early_metadata}
        self._early_metadata = {}
        self._cycles = [*(self._cycles if self.acc_events else ()), recording]
        recording.start()
        if _USER_ANNOTATION not in self.activity_filters.get(ProfilerActivity.CPU, {_USER_ANNOTATION}):
            recording.toggle(on=False)

    def stop_trace(self) -> None:
        """Stop recording the cycle. Ranges that still run, in any thread, are recorded up to now."""
        if self.execution_trace_observer:
            self.execution_trace_observer.stop()
        if not self._cycles and self._prepared is None:
            raise AssertionError("Profiler must be initialized before stopping trace")
        if not self._running():
            warn("Profiler is not running: no recording was stopped", stacklevel=2)
            return
        self._cycles[-1].stop()

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:  # noqa: ARG002  torch's
        """Write the trace of the last cycle, for Perfetto, chrome://tracing and TensorBoard.

        The file is written atomically, and can be written any number of times. While the profile is running, the trace
        has the ranges so far. A million ranges take some seconds.

        Args:
            path: File; compressed if the path ends with ``.gz``.
            use_python_export: Accepted without effect.

        Raises:
            FileNotFoundError: The folder does not exist. If the disk is full or fails, that is logged, as in torch.
        """
        recording = self._last_recording("exporting chrome trace")
        try:
            write_chrome_trace(recording, path)
        except FileNotFoundError:
            raise
        except OSError as error:
            _log.warning("the trace was not written to %s: %s", os.fspath(path), error)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write one line ``outer;inner microseconds`` for each path of nested ranges, as flame graph tools read it.

        Raises:
            AssertionError: ``with_stack`` is not set.
            ValueError: The metric is not ``self_{cpu,cuda,xpu,privateuse1}_time_total``.
        """
        self._last_recording("exporting stacks")
        if not self.with_stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self.events().export_stacks(path, metric)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Include or omit the ranges that begin from now on. No effect unless the profile is running.

        Args:
            enable: True to include them, False to omit them.
            activities: Activities to switch; only ``ProfilerActivity.CPU`` has an effect.
        """
        if self._running() and ProfilerActivity.CPU in set(activities):
            self._cycles[-1].toggle(on=enable)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> EventList[FunctionEventAvg]:
        """Return count and total times of the events by name. The arguments have no effect."""
        self._last_recording("getting key averages")
        return self.events().key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def events(self) -> EventList[FunctionEvent]:
        """Return the ranges of the last cycle, or with ``acc_events`` of all cycles, by start.

        While the profile is running, these are the ranges so far.
        """
        self._last_recording("accessing events")
        if self._events is not None:
            return self._events
        events: EventList[FunctionEvent] = EventList()
        for cycle in self._cycles:
            events += function_events(self._within_timeout(cycle), self._cycles[0].start_ns, len(events))
        if not self._running():
            self._events = events
        return events

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the top level of the last trace, or before the start to the next one.

        Raises:
            ValueError: The key is a reserved key of the trace, such as ``traceEvents``.
        """
        self._add(key, json_text(str(value)))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a value in JSON to the top level of the last trace, or before the start to the next one.

        Raises:
            ValueError: The value is not valid JSON, or the key is a reserved key of the trace.
        """
        self._add(key, _valid_json(key, value))

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a value in JSON to the top level of every trace that is started from now on.

        Raises:
            ValueError: The value is not valid JSON, or the key is a reserved key of the trace.
        """
        self.preset_metadata[_allowed(key)] = _valid_json(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Take the ids of the next traces from ``callback()``; None restores random ids."""
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """Return the id of the prepared trace, or else of the last one; None if there is none."""
        known = [*self._cycles, self._prepared]
        return next((each.trace_id for each in reversed(known) if each is not None), None)

    def export_memory_timeline(self, path: str, device: str | None = None) -> NoReturn:  # noqa: ARG002  torch's signature
        """Raise ValueError: memory allocations are not recorded without torch."""
        raise ValueError("monitel.profiler records no memory allocations; use torch.profiler.profile")

    def _add(self, key: str, text: str) -> None:
        target = self._cycles[-1].metadata if self._cycles and self._prepared is None else self._early_metadata
        target[_allowed(key)] = text

    def _options(self) -> list[str]:
        names = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        return [name for name in names if getattr(self, name)]

    def _running(self) -> bool:
        return bool(self._cycles) and self._cycles[-1].running

    def _last_recording(self, action: str) -> Recording:
        recording = self._cycles[-1] if self._cycles else self._prepared
        if recording is None:
            raise AssertionError(f"Profiler must be initialized before {action}")
        return recording

    def _within_timeout(self, recording: Recording) -> Iterator[Recorded]:
        limit = self.post_processing_timeout_s
        deadline = None if limit is None else time.monotonic() + limit
        for done, each in enumerate(recording):
            if deadline is not None and done % _RANGES_PER_CHECK == 0 and time.monotonic() >= deadline:
                warn(f"events() returns {done} of {len(recording)} ranges: timeout after {limit} s", stacklevel=3)
                return
            yield each


def _distributed_info() -> dict[str, Any]:
    """Return rank and process groups, as torch does; without torch.distributed, rank and world size of the launcher."""
    info: dict[str, Any] = {}
    dist: Any = sys.modules.get("torch.distributed")
    with suppress(Exception):  # torch is being imported, or the group is being destroyed
        if dist is not None and dist.is_available() and dist.is_initialized():
            info = {"backend": dist.get_backend(), "rank": dist.get_rank(), "world_size": dist.get_world_size()}
            info["pg_count"] = dist.get_pg_count()
            info["pg_config"] = dist.distributed_c10d._get_all_pg_configs()
            if info["backend"] == "nccl":
                info["nccl_version"] = ".".join(map(str, sys.modules["torch"].cuda.nccl.version()))
    launch = launch_attributes()
    if not info and {"training.rank", "training.world_size"} <= launch.keys():
        info = {"rank": launch["training.rank"], "world_size": launch["training.world_size"]}
    return info


def _allowed(key: str) -> str:
    if key in RESERVED_KEYS:
        raise ValueError(f"metadata key {key!r} is reserved for the trace")
    return key


def _valid_json(key: str, value: str) -> str:
    try:
        return one_line(value)
    except ValueError as error:
        raise ValueError(f"metadata {key!r} must be valid JSON, got {value!r:.80}: {error}") from None


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warn(message, stacklevel=4)


def _default_schedule_fn(_: int) -> ProfilerAction:  # torch's name; a lambda cannot be pickled
    return _RECORD


class profile(_KinetoProfile):  # noqa: N801  torch's name
    """Records ranges continuously or by a schedule, with the signature and lifecycle of torch.profiler.profile.

    It records the ranges of :class:`record_function` in every thread and asyncio task. Profiles can be nested and can
    overlap: each records all ranges that begin while it is running. Call the methods from one thread.

    Args:
        activities: Activities to record. Without torch only ``[ProfilerActivity.CPU]`` is possible, the default.
        schedule: Function that returns the :class:`ProfilerAction` of a step, such as :func:`schedule` returns.
            Without it, everything is recorded from start to stop, and there are no ``ProfilerStep#`` ranges.
        on_trace_ready: Called with the profile after the last step of each cycle. An exception from it is raised from
            :meth:`step`, :meth:`stop` or the end of the ``with`` block; the next cycle is recorded nevertheless.
        record_shapes: Noted in the trace, but nothing is recorded for it.
        profile_memory: Noted in the trace, but nothing is recorded for it.
        with_stack: Noted in the trace. :meth:`export_stacks` requires it.
        with_flops: Noted in the trace, but nothing is recorded for it.
        with_modules: Noted in the trace, but nothing is recorded for it.
        experimental_config: An ``_ExperimentalConfig``, for ``record_python_gc_info``.
        execution_trace_observer: Observer that is started and stopped with each cycle, and cleaned up at the end.
        acc_events: Keep the events of all cycles for :meth:`events`, not only of the last one.
        use_cuda: Deprecated in torch; accepted without effect.
        custom_trace_id_callback: Returns the id of each trace, a str.
        post_processing_timeout_s: Timeout of :meth:`events` in seconds; after it, the events so far are returned.

    Raises:
        AssertionError: ``activities`` is empty.
        RuntimeError: An activity cannot be recorded without torch, such as ``ProfilerActivity.CUDA``.
        TypeError: ``schedule`` returned something other than a ProfilerAction.
        ValueError: An activity is given twice, or ``schedule`` returned DEVICE_STOPPED.

    Example:
        >>> from monitel.profiler import profile, record_function, schedule
        >>> with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as prof:
        ...     for _ in range(6):
        ...         with record_function("forward"):
        ...             pass
        ...         prof.step()
        >>> [event.trace_name for event in prof.events()]
        ['ProfilerStep#2', 'forward', 'ProfilerStep#3', 'forward']
    """

    def __init__(
        self,
        *,
        activities: Activities | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: ExecutionTraceObserver | None = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        given = dict(locals())
        options: Any = {name: given[name] for name in given.keys() - {"self", "__class__", *_SCHEDULING}}
        if use_cuda is not None:
            warn("`use_cuda` is deprecated, use `activities` argument instead", FutureWarning, stacklevel=2)
        super().__init__(**options)
        self.schedule = schedule or _default_schedule_fn
        self.record_steps = bool(schedule)
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.step_rec_fn: record_function | None = None
        self.current_action = self._scheduled(0)
        KinetoStepTracker.init_step_count(STEP_NAME)

    def __enter__(self) -> profile:  # noqa: PYI034  typing.Self is 3.11's
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            self.stop()
        finally:
            KinetoStepTracker.erase_step_count(STEP_NAME)
            if self.execution_trace_observer:
                self.execution_trace_observer.cleanup()

    def start(self) -> None:
        """Start with the current step, as entering ``with`` does. If already running, warn and change nothing."""
        if self._running():
            self.start_trace()  # warns
            return
        self._close_step()
        self._transit(_NONE, self.current_action)
        self._open_step()

    def stop(self) -> None:
        """Stop, as leaving ``with`` does. If a cycle was being recorded, call ``on_trace_ready``.

        Raises:
            AssertionError: The schedule records the current step, but the profile was never started.
        """
        self._close_step()
        self._transit(self.current_action, None)

    def step(self) -> None:
        """Begin the next step.

        Raises:
            TypeError: The schedule returned something other than a ProfilerAction. The step is unchanged.
            ValueError: The schedule returned DEVICE_STOPPED. The step is unchanged.
        """
        self._close_step()
        action = self._scheduled(self.step_num + 1)
        before, self.current_action = self.current_action, action
        self.step_num += 1
        try:
            self._transit(before, action)
            if steps_are_counted():
                KinetoStepTracker.increment_step(STEP_NAME)
        finally:  # if a callback raises, the next cycle is still complete
            self._open_step()

    def _scheduled(self, step: int) -> ProfilerAction:
        action = self.schedule(step)
        if not isinstance(action, ProfilerAction):
            raise TypeError(f"a schedule must return a ProfilerAction, got {type(action).__qualname__} for step {step}")
        if action is ProfilerAction.DEVICE_STOPPED:
            raise ValueError(
                "ProfilerAction.DEVICE_STOPPED is set internally by the profiler and must not be returned by a "
                "user-provided schedule"
            )
        return action

    def _transit(self, before: ProfilerAction, after: ProfilerAction | None) -> None:
        """Go from one step's action to the next one's; None is the end. Every order of actions is possible."""
        if after is not None and (before, after) in _INCORRECT:
            warn(f"Incorrect schedule: {before.name} followed by {after.name}", stacklevel=3)
        if before is _WARMUP and after in {None, _NONE} and self.execution_trace_observer:
            self.execution_trace_observer.start()  # an empty cycle, as in torch; the last cycle is kept
            self.execution_trace_observer.stop()
        ends = before is _SAVE or (before is _RECORD and after not in _RECORDING)
        ready = before is _SAVE or (before is _RECORD and after is None)
        was_running = self._running()
        if ends:
            self.stop_trace()
        try:
            if ready and was_running and self.on_trace_ready:
                self.on_trace_ready(self)
        finally:
            if after not in (None, _NONE) and (before is _NONE or ends):
                self.prepare_trace()
            if after in _RECORDING and before is not _RECORD:
                self.start_trace()

    def _open_step(self) -> None:
        if self.record_steps:
            self.step_rec_fn = record_function(f"{STEP_NAME}#{self.step_num}")
            self.step_rec_fn.__enter__()

    def _close_step(self) -> None:
        if self.step_rec_fn is not None:
            step, self.step_rec_fn = self.step_rec_fn, None
            step.__exit__(None, None, None)


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[_KinetoProfile], None]:
    """Return a callback for ``profile(on_trace_ready=...)`` that writes each trace to a file in a folder.

    The callback raises RuntimeError if the folder cannot be created.

    Args:
        dir_name: Folder, created when the first trace is ready.
        worker_name: Beginning of the file name, unique in a distributed job; by default ``<host>_<pid>``.
        use_gzip: Compress the files.
        use_python_export: Accepted without effect.

    Example:
        >>> from pathlib import Path
        >>> from monitel.profiler import profile, record_function, tensorboard_trace_handler
        >>> with profile(on_trace_ready=tensorboard_trace_handler("traces", "rank-0")):
        ...     with record_function("forward"):
        ...         pass
        >>> len(list(Path("traces").glob("rank-0.*.pt.trace.json")))
        1
    """

    def handler(prof: _KinetoProfile) -> None:
        try:
            Path(dir_name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeError(f"Can't create directory: {os.fspath(dir_name)}") from error
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        suffix = ".gz" if use_gzip else ""
        now_ns = time.time_ns()
        while (file := Path(dir_name, f"{worker}.{now_ns}.pt.trace.json{suffix}")).exists():  # another rank's
            now_ns += 1
        prof.export_chrome_trace(str(file), use_python_export=use_python_export)

    return handler
