"""The function instrument() and its result."""

from __future__ import annotations

import atexit
import logging
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monitel.process.failures import call_each
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock
from monitel.torch.boundaries.batch_loading import BatchLoading
from monitel.torch.boundaries.optimizer_steps import OptimizerSteps
from monitel.torch.hooks import Missing, Source
from monitel.torch.options import CHOICES, SOURCES, chosen_sources
from monitel.torch.poller import Poller
from monitel.torch.rates import Rates
from monitel.torch.scalars.fetcher import Fetcher
from monitel.torch.scalars.tensors import Tensors
from monitel.torch.sources.activities import DataActivity, ProcessGroups
from monitel.torch.sources.checkpoints import Checkpoints
from monitel.torch.sources.compilation import Compilations
from monitel.torch.sources.failures import Failures
from monitel.torch.sources.monitor import TorchMonitor
from monitel.torch.sources.steps import Steps
from monitel.torch.sources.waits import StuckWaits, WaitCounters
from monitel.torch.stages.cycle import TrainingThread
from monitel.torch.stages.device_stages import DeviceStages
from monitel.torch.stages.stages import Stages
from monitel.variables import reads_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Amount = float | Callable[[], float]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_log = logging.getLogger("monitel.torch")
_lock = RLock()
_running: Instrumentation | None = None
_warned: set[str] = set()


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
        for name, source in sources.items():
            try:
                self._install(source)
            except Missing as missing:
                self.missing[name] = str(missing)
                if name not in _warned:
                    _warned.add(name)
                    _log.warning("instrument() does not install %s here: %s", name, missing)
            else:
                self.sources += (name,)
        polled = [each.poll for each in self._installed if type(each).poll is not Source.poll]
        self._poller = Poller(polled)

    def _install(self, source: Source) -> None:
        """Install a source and the hooks that it needs. If one of them raises, nothing is left."""
        missing = _with_needs(source, self._installed)
        with ExitStack() as undo:
            for each in missing:
                each.install()
                undo.callback(each.remove)
            undo.pop_all()
        self._installed += missing

    def uninstrument(self) -> None:
        """Remove all hooks from torch and flush all Stats. Idempotent.

        If event handlers raise, the first exception propagates after all sources are removed.
        """
        global _running
        with _lock:
            if _running is self:
                _running = None
            installed, self._installed, self.sources = self._installed, [], ()
        if installed:
            self._poller.close()
            call_each(lambda each: each.remove(), reversed(installed))

    def __enter__(self) -> Instrumentation:  # noqa: PYI034  typing.Self requires Python 3.11
        return self

    def __exit__(self, *_exception: object) -> None:
        self.uninstrument()

    def __repr__(self) -> str:
        return f"<Instrumentation of {', '.join(self.sources) or 'nothing'}>"


def _with_needs(source: Source, installed: list[Source]) -> list[Source]:
    """Return a source behind the hooks that it needs, without those that are installed."""
    found: list[Source] = []
    for each in source.needs:
        found += (other for other in _with_needs(each, installed) if other not in found)
    return [*found, *([] if source in installed else [source])]


def _refuses_switches(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Raise a TypeError that names ``sources`` if the name of a source is an argument."""

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        for name in SOURCES.keys() & options.keys():
            sign = "+" if options[name] else "-"
            raise TypeError(f'instrument() has no argument {name!r}: it is a source, sources="{sign}{name}"')
        return function(*arguments, **options)

    return call


@_refuses_switches
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
    * ``tensors``: ``Stat.add(tensor)`` and ``emit(..., loss=tensor)`` without waiting for the device, and ``Stat.add``
      in code that torch.compile compiles, without a graph break.

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
    """Create the sources that are chosen, by their names. Changes nothing in torch."""
    size, group, stuck_after = options["window_size"], options["rank_group"], options["stuck_after"]
    rates = Rates(
        size,
        *(options["samples_per_step"], options["tokens_per_step"], options["flops_per_step"], options["peak_flops"]),
    )
    chosen, fetcher, thread = options["sources"], Fetcher(size), TrainingThread()
    optimizers, batches = OptimizerSteps(thread), BatchLoading(thread)
    device = DeviceStages(size, group, optimizers, fetcher) if "stages_on_device" in chosen else None
    factories: dict[str, Callable[[], Source | None]] = {
        "stages_on_device": lambda: device,
        "stages": lambda: Stages(size, group, thread, optimizers, batches, device=device),
        "steps": lambda: Steps(size, rates, fetcher, optimizers),
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


def _end() -> None:
    """End the polling thread at exit, and the sources that must not outlive it.

    torch would crash with a handler of torch.monitor, pending tensors are waited for, and the last rates are logged.
    The other sources stay, for the final collection of exporters. The last flush logs the events that are queued: with
    an exporter it is not in this thread, so an event handler that hangs does not delay the exit.
    """
    if _running is not None:
        _running._poller.stop()
        for source in reversed(_running._installed):
            try:
                source.end()
            except Exception:
                _log.warning("an event handler raised at exit", exc_info=True)


def _reset_in_child() -> None:
    """Reset threads and locks in a forked child. Hooks stay.

    The polling thread does not run there: events of torch.monitor are logged in each flush.
    """
    global _lock
    _lock = RLock()
    if _running is not None:
        polled = [each.poll for each in _running._installed if isinstance(each, TorchMonitor)]
        _running._poller = Poller(polled, threaded=False)
        for source in _running._installed:
            source.reset()


register_at_fork(after_in_child=_reset_in_child)
