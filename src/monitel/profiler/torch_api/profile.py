"""torch.profiler's facade: a context manager that records some steps of a training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from warnings import warn

from monitel.profiler.cycles import _KinetoProfile
from monitel.profiler.function_events import STEP_NAME
from monitel.profiler.observer import ExecutionTraceObserver
from monitel.profiler.ranges import record_function
from monitel.profiler.scheduling import ProfilerAction, always
from monitel.profiler.steps import KinetoStepTracker, daemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel.profiler.activities import Activities
    from monitel.profiler.cycles import TraceObserver
    from monitel.profiler.experimental import _ExperimentalConfig

_NONE, _WARMUP, _RECORD, _SAVE = list(ProfilerAction)[:4]
_RECORDING = (_RECORD, _SAVE)
_INCORRECT = {(_WARMUP, _NONE), (_RECORD, _NONE), (_RECORD, _WARMUP)}


class profile(_KinetoProfile):  # noqa: N801  torch's name
    """Record ranges: all the time, or by a schedule; with the lifecycle and the signature of torch.profiler.profile.

    Ranges come from :class:`record_function`, in every thread and asyncio task. Profiles can be nested and can
    overlap: each has all ranges that begin while it records. Call the methods from one thread.

    Args:
        activities: What to record: ``[ProfilerActivity.CPU]``, which is the default, is all there is without torch.
        schedule: Gives the :class:`ProfilerAction` of each step, as :func:`schedule` makes one; without it
            everything is recorded from start to stop, and there are no ``ProfilerStep#`` ranges.
        on_trace_ready: Called with the profile after the last step of each cycle. What it raises comes out of
            :meth:`step` or of leaving the profile; the next cycle is recorded all the same.
        record_shapes: Noted in the trace; without torch there is nothing to record. So are the next four.
        profile_memory: Noted.
        with_stack: Noted.
        with_flops: Noted.
        with_modules: Noted.
        experimental_config: torch's ``_ExperimentalConfig``, for ``record_python_gc_info``.
        execution_trace_observer: Started and stopped with each cycle, cleaned up at the end.
        acc_events: Let :meth:`events` keep the cycles before the last.
        use_cuda: Deprecated in torch, and without effect.
        custom_trace_id_callback: Gives the id of each trace, a str.
        post_processing_timeout_s: Seconds after which :meth:`events` gives what it has.

    Raises:
        AssertionError: No activity.
        RuntimeError: An activity that has no source without torch, such as ``ProfilerActivity.CUDA``.
        ValueError: An activity twice; a schedule that gives DEVICE_STOPPED.

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
            execution_trace_observer=execution_trace_observer
            or ExecutionTraceObserver.build_execution_trace_obs_from_env(),
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
        """Begin with the current step; ``with`` does. Once more, a warning and no change."""
        if self._running():
            self.start_trace()  # says so
            return
        self._close_step()
        self._transit(_NONE, self.current_action)
        self._open_step()

    def stop(self) -> None:
        """End; leaving ``with`` does. What was being recorded is ready: ``on_trace_ready`` is called.

        Raises:
            AssertionError: It should be recording, and was never started.
        """
        self._close_step()
        self._transit(self.current_action, None)

    def step(self) -> None:
        """Say that the next step begins.

        Raises:
            TypeError: The schedule gives no ProfilerAction; nothing has changed then.
            ValueError: It gives DEVICE_STOPPED; likewise.
        """
        self._close_step()
        action = self._scheduled(self.step_num + 1)
        before, self.current_action = self.current_action, action
        self.step_num += 1
        try:
            self._transit(before, action)
        finally:  # a callback that raises leaves the next cycle whole
            if daemon():
                KinetoStepTracker.increment_step(STEP_NAME)
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
        """From one step to the next; None is the end. No order of actions is a reason to fail."""
        if after is not None and (before, after) in _INCORRECT:
            warn(f"Incorrect schedule: {before.name} followed by {after.name}", stacklevel=3)
        if before is _WARMUP and after in {None, _NONE} and self.execution_trace_observer:
            self.execution_trace_observer.start()  # a recording of no length, as in torch: the cycle before is kept
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
