"""The function instrument() and its result."""

from __future__ import annotations

import atexit
import logging
import math
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from monitel.failures import call_each
from monitel.fork import register_at_fork
from monitel.os_threads import RLock
from monitel.torch._compat import Missing
from monitel.torch.boundaries.batch_loading import BatchLoading
from monitel.torch.boundaries.optimizer_steps import OptimizerSteps
from monitel.torch.options import CHOICES, InstrumentOptions, takes_options
from monitel.torch.poller import Poller
from monitel.torch.rates import Rates
from monitel.torch.scalars.compiled_adds import CompiledAdds
from monitel.torch.scalars.fetcher import Fetcher
from monitel.torch.scalars.hooks import ScalarHooks
from monitel.torch.sources.checkpoints import Checkpoints
from monitel.torch.sources.compilation import Compilation
from monitel.torch.sources.data_activity import DataActivity
from monitel.torch.sources.failures import Failures
from monitel.torch.sources.process_groups import ProcessGroups
from monitel.torch.sources.steps import Steps
from monitel.torch.sources.torch_monitor import TorchMonitor
from monitel.torch.sources.waits.stuck_waits import StuckWaits
from monitel.torch.sources.waits.wait_counters import WaitCounters
from monitel.torch.stages.cycle import TrainingThread
from monitel.torch.stages.device_stages import DeviceStages
from monitel.torch.stages.stages import Stages
from monitel.variables import reads_variables

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("monitel.torch")
_lock = RLock()
_running: Instrumentation | None = None
_warned: set[str] = set()


class Source(Protocol):
    """A source of telemetry in torch."""

    def install(self) -> None:
        """Install hooks; raise Missing if this version of torch or the machine lacks what they need."""

    def remove(self) -> None:
        """Remove the hooks and flush."""


@runtime_checkable
class PolledSource(Source, Protocol):
    """A source that is polled every second."""

    def poll(self) -> None:
        """Log what has happened since the last poll."""


class Instrumentation:
    """The result of :func:`monitel.torch.instrument`; leaving ``with instrumentation:`` calls ``uninstrument()``.

    Attributes:
        sources: The names of the installed sources, as in the arguments of ``instrument()``.
        missing: The sources that this version of torch or the machine does not support, each with what is lacking.
    """

    def __init__(self, options: InstrumentOptions, sources: dict[str, Source]) -> None:
        self._options = options
        self._sources: dict[str, Source] = {}
        self.missing: dict[str, str] = {}
        for name, source in sources.items():
            try:
                source.install()
            except Missing as missing:
                self.missing[name] = str(missing)
                if name not in _warned:
                    _warned.add(name)
                    _log.warning("instrument(%s=...) has no effect here: %s", name, missing)
            else:
                self._sources[name] = source
        self._poller = Poller([each.poll for each in self._sources.values() if isinstance(each, PolledSource)])

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the installed sources."""
        return tuple(self._sources)

    def uninstrument(self) -> None:
        """Remove all hooks from torch and flush all Stats. Idempotent.

        If event handlers raise, the first exception propagates after all sources are removed.
        """
        global _running
        with _lock:
            if _running is self:
                _running = None
            sources, self._sources = self._sources, {}
        if sources:
            self._poller.close()
            call_each(lambda source: source.remove(), reversed(sources.values()))

    def __enter__(self) -> Instrumentation:  # noqa: PYI034  typing.Self requires Python 3.11
        return self

    def __exit__(self, *_exception: object) -> None:
        self.uninstrument()

    def __repr__(self) -> str:
        return f"<Instrumentation of {', '.join(self._sources) or 'nothing'}>"


@reads_variables(CHOICES)
@takes_options(InstrumentOptions)
def instrument(**options: Any) -> Instrumentation:
    """Record what a PyTorch job does: steps, data loading, waits, compilations, failures and more.

    A second call with the same options returns the running instrumentation. A call with other options ends it first.

    Args:
        **options: The fields of :class:`monitel.torch.options.InstrumentOptions`, which has their types, defaults and
            documentation. Each source can be switched on and off. An omitted option is read from
            an environment variable: MONITEL_ with its name in capitals, e.g. MONITEL_SAMPLES_PER_STEP. If a variable
            has a wrong value, a warning is logged, and the default is used.

    Returns:
        The running instrumentation, to end it and to look up the installed sources.

    Raises:
        TypeError: An argument is unknown or has the wrong type.
        ValueError: A number is out of range, or an argument lacks another one that it requires.

    Example:
        >>> import monitel.torch
        >>> with monitel.torch.instrument(failures=False, compilation=False, checkpoints=False) as running:
        ...     running.sources
        ('stages', 'steps', 'loading', 'waits', 'stuck_after', 'monitor', 'process_groups', 'tensors', 'compiled_adds')
    """
    global _running
    try:
        signature(instrument).bind(**options)
    except TypeError as error:
        raise TypeError(f"instrument() {error}") from None
    wanted = InstrumentOptions(**options)
    with _lock:
        if _running is not None and _running._options == wanted:
            return _running
        sources = _create_sources(wanted)
        if _running is not None:
            _running.uninstrument()
        _running = Instrumentation(wanted, sources)
        atexit.unregister(_end)
        atexit.register(_end)  # registered last, so that it runs before the exit functions of exporters
        return _running


def _create_sources(options: InstrumentOptions) -> dict[str, Source]:
    """Create the sources that are switched on, by the names of their options. Changes nothing in torch."""
    size = options.window_size
    rates = Rates(
        size,
        samples=options.samples_per_step,
        tokens=options.tokens_per_step,
        flops=options.flops_per_step,
        peak_flops=options.peak_flops,
    )
    fetcher = Fetcher(size)
    thread = TrainingThread()
    optimizers, batches = OptimizerSteps(thread), BatchLoading(thread)
    stuck_after, group = options.stuck_after, options.rank_group
    device = DeviceStages(size, group, optimizers, fetcher) if options.stages_on_device else None
    factories: dict[str, Callable[[], Source] | None] = {
        # Before the steps: listeners are called in this order, and the range of an optimizer has the step of its start.
        "stages_on_device": (lambda: device) if device is not None else None,
        "stages": (lambda: Stages(size, group, thread, optimizers, batches, device=device)) if options.stages else None,
        "steps": (lambda: Steps(size, rates, fetcher, optimizers)) if options.steps else None,
        "loading": (lambda: DataActivity(batches)) if options.loading else None,
        "waits": WaitCounters if options.waits else None,
        "stuck_after": (lambda: StuckWaits(stuck_after)) if stuck_after is not None else None,
        "monitor": TorchMonitor if options.monitor else None,
        "compilation": Compilation if options.compilation else None,
        "failures": Failures if options.failures else None,
        "checkpoints": Checkpoints if options.checkpoints else None,
        "process_groups": ProcessGroups if options.process_groups else None,
        "tensors": (lambda: ScalarHooks(fetcher)) if options.tensors else None,
        "compiled_adds": CompiledAdds if options.compiled_adds else None,
    }
    return {name: create() for name, create in factories.items() if create is not None}


def _end() -> None:
    """End the polling thread at exit, and remove the sources that must not outlive it.

    torch would crash with a handler of torch.monitor, pending tensors are waited for, and the last rates are logged.
    The other sources stay, for the final collection of exporters. The last flush logs the events that are queued: with
    an exporter it is not in this thread, so an event handler that hangs does not delay the exit.
    """
    if _running is not None:
        _running._poller.stop()
        for source in _running._sources.values():
            if isinstance(source, TorchMonitor):
                source.detach()
            elif isinstance(source, (DeviceStages, Steps, ScalarHooks)):
                try:
                    source.remove()
                except Exception:
                    _log.warning("an event handler raised at exit", exc_info=True)


def _reset_in_child() -> None:
    """Reset threads and locks in a forked child. Hooks stay.

    The polling thread does not run there: events of torch.monitor are logged in each flush.
    """
    global _lock
    _lock = RLock()
    if _running is not None:
        monitors = [each for each in _running._sources.values() if isinstance(each, TorchMonitor)]
        _running._poller = Poller([each.poll for each in monitors], math.inf)
        for source in _running._sources.values():
            if isinstance(source, (DeviceStages, Stages, Steps, ScalarHooks)):
                source.reset()


register_at_fork(after_in_child=_reset_in_child)
