"""Profiles with a schedule: the context manager that records some steps of a training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from warnings import warn

from monitel.profiler.ranges import record_function
from monitel.profiler.torch_api.function_events import STEP_NAME
from monitel.profiler.torch_api.kineto_profile import _KinetoProfile
from monitel.profiler.torch_api.schedule import ProfilerAction, always

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.torch_api.activities import Activities
    from monitel.profiler.torch_api.experimental import _ExperimentalConfig
    from monitel.profiler.torch_api.kineto_profile import TraceObserver

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
        self.schedule = schedule or always
        self.record_steps = bool(schedule)
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.step_rec_fn: record_function | None = None
        self.current_action = self._scheduled(0)

    def __enter__(self) -> profile:  # noqa: PYI034  typing.Self is 3.11's
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            self.stop()
        finally:
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
