"""Profiles with a schedule: the context manager that records some steps of a training loop, and its schedules."""

from __future__ import annotations

import os
import socket
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from monitel.profiler.ranges import record_function
from monitel.profiler.torch_api.function_events import STEP_NAME
from monitel.profiler.torch_api.kineto_profile import _KinetoProfile
from monitel.profiler.torch_api.step_tracker import KinetoStepTracker, steps_are_counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.torch_api.activities import Activities, _ExperimentalConfig
    from monitel.profiler.torch_api.kineto_profile import TraceObserver


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


_NONE, _WARMUP, _RECORD, _SAVE = list(ProfilerAction)[:4]
_RECORDING = (_RECORD, _SAVE)
_INCORRECT = {(_WARMUP, _NONE), (_RECORD, _NONE), (_RECORD, _WARMUP)}


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
        execution_trace_observer: TraceObserver | None = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        if use_cuda is not None:
            warn("`use_cuda` is deprecated, use `activities` argument instead", FutureWarning, stacklevel=2)
        super().__init__(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            acc_events=acc_events,
            custom_trace_id_callback=custom_trace_id_callback,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        self.schedule = schedule or (lambda _step: _RECORD)
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
