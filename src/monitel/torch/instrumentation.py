"""The function instrument(): its options, its result, and the thread that polls the sources."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

from monitel.attributes import checked_text
from monitel.process.exit import without_interruption
from monitel.process.failures import call_each, warn_once
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import Lock, RLock, get_ident
from monitel.process.worker import Worker
from monitel.stats import before_flush
from monitel.stats.definition import window_length_ns
from monitel.torch.activities import Checkpoints, Compilations, ProcessGroups
from monitel.torch.cycle import TrainingThread
from monitel.torch.device_stages import DeviceStages
from monitel.torch.devices import Fetcher
from monitel.torch.failures import Failures
from monitel.torch.hooks import Missing, Source
from monitel.torch.loading import BatchLoading, DataActivity
from monitel.torch.monitor import TorchMonitor
from monitel.torch.stages import Stages
from monitel.torch.steps import OptimizerSteps, Steps
from monitel.torch.tensors import Tensors
from monitel.torch.waits import StuckWaits, WaitCounters
from monitel.variables import Variable, positive, reads_variables

Amount = float | Callable[[], float]

#: The names of the sources, and whether each one is installed by default.
SOURCES = {
    "stages_on_device": False,  # before the stages and the steps: the range of an optimizer has the step of its start
    "stages": True,
    "steps": True,
    "loading": True,
    "waits": True,
    "stuck": True,
    "monitor": True,
    "compilation": True,
    "failures": True,
    "checkpoints": True,
    "process_groups": True,
    "tensors": True,
}

_log = logging.getLogger("monitel.torch")
_INTERVAL_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_PATIENCE_S = 0.1  # that a flush waits for another thread's poll: it must not hang with an event handler
_lock = RLock()
_running: Instrumentation | None = None


def chosen_sources(sources: str | Collection[str] | None) -> frozenset[str]:
    """Return the names that an argument chooses. Names with a sign, ``+name`` or ``-name``, change the default."""
    default = frozenset(name for name, installed in SOURCES.items() if installed)
    if sources is None:
        return default
    given = sources.split(",") if isinstance(sources, str) else sources
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"sources must be names of sources, got {sources!r:.80}")
    names = [name.strip() for name in given]
    changes = any(name.startswith(("+", "-")) for name in names)
    if changes and not all(name.startswith(("+", "-")) for name in names):
        raise ValueError(f"sources must all have a sign, to change the default, or none, got {sources!r:.80}")
    for name in names:
        if (name[1:] if changes else name) not in SOURCES:
            raise ValueError(f"sources must be names of {', '.join(SOURCES)}, got {name!r:.80}")
    added, removed = ({name[1:] for name in names if name.startswith(sign)} for sign in "+-")
    chosen = (default | added) - removed if changes else frozenset(names)
    if "stages_on_device" in chosen and "stages" not in chosen:
        raise ValueError("stages_on_device requires stages: it measures the same stages")
    return chosen


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be None or a str, got {value!r:.80}")
    if not checked_text(name, value):
        raise ValueError(f"{name} must be None or a name, got an empty str")


_AMOUNT = positive("a positive and finite number")
_AMOUNT_OR_FUNCTION = _AMOUNT._replace(
    check=positive("a positive and finite number, or callable", other=callable).check
)
_SECONDS = positive("None or a positive number of seconds", below=None, other=lambda value: value is None)
#: The variable of each argument.
CHOICES: dict[str, Variable] = {
    "sources": Variable(str, f"names of {', '.join(SOURCES)}", check=lambda _, value: chosen_sources(value)),
    "stuck_after": _SECONDS._replace(parse=lambda text: None if text.lower() == "none" else _SECONDS.parse(text)),
    "rank_group": Variable(str, "a name", check=_check_name),
    "samples_per_step": _AMOUNT_OR_FUNCTION,
    "tokens_per_step": _AMOUNT_OR_FUNCTION,
    "flops_per_step": _AMOUNT_OR_FUNCTION._replace(requires="peak_flops"),
    "peak_flops": _AMOUNT._replace(requires="flops_per_step"),
    "window_size": Variable(
        float, "a number of seconds, at least 0.001", check=lambda _, value: window_length_ns(value)
    ),
}


class Poller:
    """Calls functions once a second in a daemon thread, and before each flush. A failure is logged once for each."""

    def __init__(self, functions: Sequence[Callable[[], None]], *, threaded: bool = True) -> None:
        self._functions = functions
        self._polling = Lock()
        self._polling_thread: int | None = None
        self._worker = Worker("monitel-torch", self._run, first=_INTERVAL_S)
        if self._functions:
            if threaded:
                self._worker.start()
            before_flush.register(self.poll)

    def poll(self) -> None:
        """Call each function, unless this thread does so already. Another thread that does so is waited for."""
        if self._polling_thread == get_ident():  # an event handler flushes
            return
        if not self._polling.acquire(timeout=_PATIENCE_S):
            warn_once(_log, "an event handler hangs or is slow: a flush does not include all events of torch")
            return
        try:
            self._polling_thread = get_ident()
            for function in self._functions:
                try:
                    function()
                except Exception:
                    name = getattr(function, "__qualname__", function)
                    message = "%s failed; polling continues (further failures are not logged)"
                    warn_once(_log, message, name, key=name, exc_info=True)
        finally:
            self._polling_thread = None
            self._polling.release()

    def stop(self) -> None:
        """End the thread. Before each flush the functions are still called."""
        self._worker.stop()

    def close(self) -> None:
        self.stop()
        if self._worker.started and self._polling_thread != get_ident():
            self._worker.join(time.monotonic() + _JOIN_TIMEOUT_S)
        before_flush.unregister(self.poll)
        self.poll()

    def _run(self) -> float:
        if not self._polling.locked():  # else a flush polls
            self.poll()
        return _INTERVAL_S


class Instrumentation:
    """The result of :func:`monitel.torch.instrument`; leaving ``with instrumentation:`` calls ``uninstrument()``.

    Attributes:
        sources: The names of the installed sources, as in the argument ``sources`` of ``instrument()``.
        missing: The sources that this version of torch or the machine does not support, each with what is lacking.
    """

    def __init__(self, options: dict[str, Any], sources: dict[str, Source]) -> None:
        self._options = options
        self._installed: list[Source] = []
        self.sources: tuple[str, ...] = ()
        self.missing: dict[str, str] = {}
        with ExitStack() as undo:
            undo.callback(_remove, self._installed)  # if a source fails, nothing is left
            for name, source in sources.items():
                try:
                    self._install(source)
                except Missing as missing:
                    self.missing[name] = str(missing)
                    warn_once(_log, "instrument() does not install %s here: %s", name, missing, key=name)
                else:
                    self.sources += (name,)
            polled = [each.poll for each in self._installed if type(each).poll is not Source.poll]
            self._poller = Poller(polled)
            undo.pop_all()

    def _install(self, source: Source) -> None:
        """Install a source and the hooks that it needs. If one of them raises, nothing is left."""
        missing = _with_needs(source, self._installed)
        with ExitStack() as undo:
            for each in missing:
                undo.callback(each.unhook)  # of an installation that fails
                each.install()
                undo.callback(each.remove)
            undo.pop_all()
        self._installed += missing

    def uninstrument(self) -> None:
        """Remove all hooks from torch and log what they have collected. Idempotent.

        If event handlers raise, the first exception propagates after all sources are removed.
        """
        global _running
        with _lock:
            if _running is self:
                _running = None
            installed, self._installed, self.sources = self._installed, [], ()
        if installed:
            self._poller.close()
            _remove(installed)

    def __enter__(self) -> Instrumentation:  # noqa: PYI034  typing.Self requires Python 3.11
        return self

    def __exit__(self, *_exception: object) -> None:
        self.uninstrument()

    def __repr__(self) -> str:
        return f"<Instrumentation of {', '.join(self.sources) or 'nothing'}>"


def _remove(installed: list[Source]) -> None:
    call_each(lambda each: each.remove(), reversed(installed))


def _with_needs(source: Source, installed: list[Source]) -> list[Source]:
    """Return a source behind the hooks that it needs, without those that are installed."""
    found: list[Source] = []
    for each in source.needs:
        found += (other for other in _with_needs(each, installed) if other not in found)
    return [*found, *([] if source in installed else [source])]


@reads_variables(CHOICES)
def instrument(
    *,
    sources: str | Collection[str] | None = None,
    stuck_after: float | None = 300.0,
    rank_group: str | None = None,
    samples_per_step: Amount | None = None,
    tokens_per_step: Amount | None = None,
    flops_per_step: Amount | None = None,
    peak_flops: float | None = None,
    window_size: float = 60.0,
) -> Instrumentation:
    """Record what a PyTorch job does: steps, data loading, waits, compilations, failures and more.

    A second call with the same arguments returns the running instrumentation. A call with others ends it first. An
    omitted argument is read from an environment variable: MONITEL_ with its name in capitals, e.g.
    MONITEL_SAMPLES_PER_STEP. If a variable has a wrong value, a warning is logged, and the default is used. An option
    of a source that is not chosen has no effect.

    Sources, by default all except the first one:

    * ``stages_on_device``: The stages on the accelerator too: ``training.stage.device.duration``. Requires ``stages``.
    * ``stages``: The stages of a training step: ``training.stage.duration``, which shows in which stage a rank is late.
    * ``steps``: Optimizer steps: ``training.steps``, ``training.steps.skipped``, ``training.step.duration``, the
      process's step, and the rates of ``training.samples`` and ``training.tokens``.
    * ``loading``: Time that the loop waits for batches: the activity ``data``.
    * ``waits``: torch's wait counters, in :func:`monitel.wait_counters` and in all exporters.
    * ``stuck``: Waits in flight, torch's or monitel's, that exceed ``stuck_after``: ``wait.stuck`` events, and the
      activity ``stuck``.
    * ``monitor``: Events and Stats that torch code logs through torch.monitor, forwarded to monitel's handlers.
    * ``compilation``: A range, events and the activity ``compile`` for compilations by torch.compile, with the reasons
      for recompilations.
    * ``failures``: Events for uncaught exceptions, GPU memory errors and failed collectives.
    * ``checkpoints``: Activities and events of checkpoints by torch.save, torch.load and torch.distributed.checkpoint.
    * ``process_groups``: The activity ``init``: set-up of process groups of torch.distributed.
    * ``tensors``: ``Stat.add(tensor)`` and ``emit(..., loss=tensor)`` without waiting for the device.

    Args:
        sources: Names of sources, which replace the default, or names with signs, which change it: ``["steps"]``,
            ``"-failures"``, ``"+stages_on_device,-monitor"``.
        stuck_after: Seconds after which a wait is stuck; None for never.
        rank_group: Name of the group of ranks with which this rank is compared, where ranks differ by design, as
            pipeline stages do: the attribute ``training.group`` of the stages. None for all ranks.
        samples_per_step: Samples per step of this process, for ``training.samples`` and its rate: a number, or a
            function without arguments that is called after each step.
        tokens_per_step: Tokens per step of this process, for ``training.tokens`` and its rate, in the same form.
        flops_per_step: The model's floating point operations per step of this process, for ``training.mfu``, in the
            same form. Requires ``peak_flops``.
        peak_flops: Peak floating point operations per second of the device. Requires ``flops_per_step``.
        window_size: Window size of all Stats in seconds, at least 0.001.

    Returns:
        The running instrumentation, to end it and to look up the installed sources.

    Raises:
        TypeError: An argument is unknown or has the wrong type.
        ValueError: A number is out of range, a source is unknown, or an argument lacks another one that it requires.

    Example:
        >>> import monitel.torch
        >>> with monitel.torch.instrument(sources="-failures,-compilation,-checkpoints") as running:
        ...     running.sources
        ('stages', 'steps', 'loading', 'waits', 'stuck', 'monitor', 'process_groups', 'tensors')
    """
    global _running
    options = {**locals(), "sources": chosen_sources(sources)}
    if (flops_per_step is None) != (peak_flops is None):
        raise ValueError("flops_per_step and peak_flops must be given together (MFU is their ratio)")
    with _lock:
        if _running is not None and _running._options == options:
            return _running
        created = _create_sources(options)
        if _running is not None:
            _running.uninstrument()
        _running = Instrumentation(options, created)
        atexit.unregister(_end)
        atexit.register(_end)  # registered last, so that it runs before the exit functions of exporters
        return _running


def _create_sources(options: dict[str, Any]) -> dict[str, Source]:
    """Create the sources that are chosen. Changes nothing in torch."""
    size, group, stuck_after = options["window_size"], options["rank_group"], options["stuck_after"]
    chosen, fetcher, thread = options["sources"], Fetcher(size), TrainingThread()
    optimizers, batches = OptimizerSteps(thread), BatchLoading(thread)
    device = DeviceStages(size, group, optimizers, fetcher) if "stages_on_device" in chosen else None
    factories: dict[str, Callable[[], Source | None]] = {
        "stages_on_device": lambda: device,
        "stages": lambda: Stages(size, group, thread, optimizers, batches, device=device),
        "steps": lambda: Steps(options, fetcher, optimizers),
        "loading": lambda: DataActivity(batches),
        "waits": WaitCounters,
        "stuck": lambda: None if stuck_after is None else StuckWaits(stuck_after),
        "monitor": TorchMonitor,
        "compilation": Compilations,
        "failures": Failures,
        "checkpoints": Checkpoints,
        "process_groups": ProcessGroups,
        "tensors": lambda: Tensors(fetcher),
    }
    created = {name: factories[name]() for name in SOURCES if name in chosen}
    return {name: source for name, source in created.items() if source is not None}


@without_interruption(raises=False)
def _end() -> None:
    """End at exit what must not outlive the interpreter, such as torch's handler.

    The last collection polls the rest.
    """
    if _running is not None:
        _running._poller.stop()
        for source in reversed(_running._installed):
            try:
                source.end()
            except Exception:
                _log.warning("an event handler raised at exit", exc_info=True)


def _reset_in_child() -> None:
    """Reset threads and locks in a forked child, which has no polling thread. Hooks stay."""
    global _lock
    _lock = RLock()
    if _running is not None:
        polled = [each.poll for each in _running._installed if isinstance(each, TorchMonitor)]
        _running._poller = Poller(polled, threaded=False)
        for source in _running._installed:
            source.reset()


register_at_fork(after_in_child=_reset_in_child)
