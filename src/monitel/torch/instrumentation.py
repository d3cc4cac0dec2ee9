"""instrument() and what it gives back."""

from __future__ import annotations

import atexit
import logging
import os
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from monitel.handlers import raise_first
from monitel.torch._compat import Missing
from monitel.torch.compilation import Compilation
from monitel.torch.compiled_adds import CompiledAdds
from monitel.torch.failures import Failures
from monitel.torch.loading import Loading
from monitel.torch.monitor import Monitor
from monitel.torch.phases import Phases
from monitel.torch.steps import Steps
from monitel.torch.stuck import Stuck
from monitel.torch.tensors import Tensors
from monitel.torch.ticking import Ticking
from monitel.torch.waits import Waits
from monitel.torch.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_log = logging.getLogger("monitel.torch")
_lock = RLock()
_running: Instrumentation | None = None
_said: set[str] = set()


class Source(Protocol):
    """One socket of torch's."""

    def install(self) -> None:
        """Plug it in; raises Missing where this torch does not have it."""

    def remove(self) -> None:
        """Unplug it."""


@runtime_checkable
class Ticked(Source, Protocol):
    """One that wants to be called every second."""

    def tick(self) -> None:
        """Do what is to be done."""


class Instrumentation:
    """What :func:`monitel.torch.instrument` returns; leaving ``with instrumentation:`` ends it.

    Attributes:
        sources: The names of the sources that run, as ``instrument()`` calls them.
        missing: Those that were asked for and that this torch does not have, with what was not found.
    """

    def __init__(self, choices: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
        self._choices = dict(choices)
        self._sources: dict[str, Source] = {}
        self.missing: dict[str, str] = {}
        for name, source in sources.items():
            try:
                source.install()
            except Missing as missing:
                self.missing[name] = str(missing)
                if name not in _said:
                    _said.add(name)
                    _log.warning("instrument(%s=...) does nothing with this torch: %s", name, missing)
            else:
                self._sources[name] = source
        self._ticking = Ticking([source.tick for source in self._sources.values() if isinstance(source, Ticked)])

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources that run."""
        return tuple(self._sources)

    def uninstrument(self) -> None:
        """Leave torch as it was, and log what was collected; a second time does nothing.

        All of it is done, also where a handler raises; then the first exception propagates.
        """
        global _running
        with _lock:
            if _running is self:
                _running = None
            sources, self._sources = self._sources, {}
        if not sources:
            return
        self._ticking.close()
        failures: list[BaseException] = []
        for source in reversed(sources.values()):
            try:
                source.remove()
            except Exception as error:
                failures.append(error)
        if failures:
            raise_first(failures)

    def __enter__(self) -> Instrumentation:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.uninstrument()

    def __repr__(self) -> str:
        return f"<Instrumentation of {', '.join(self._sources) or 'nothing'}>"


def instrument(
    *,
    steps: bool = True,
    loading: bool = True,
    waits: bool = True,
    stuck_after: float | None = 300.0,
    monitor: bool = True,
    compilation: bool = True,
    failures: bool = True,
    tensors: bool = True,
    compiled_adds: bool = True,
    phases: bool = False,
    model: nn.Module | None = None,
    samples_per_step: float | None = None,
    tokens_per_step: float | None = None,
    flops_per_step: float | None = None,
    peak_flops: float | None = None,
    window_size: float = 60.0,
) -> Instrumentation:
    """Make a PyTorch job visible: each source can be switched on and off, ``docs/torch.md`` says what it gives.

    Called again with the same choices, it returns what runs already; with others, that is ended first.

    Args:
        steps: Optimizer steps: ``training.steps``, ``training.step.duration``, and the process's step.
        loading: Waiting for batches: ``training.data.duration``.
        waits: torch's own wait counters, in :func:`monitel.wait_counters` and all exporters.
        stuck_after: Seconds after which a wait in flight, torch's or monitel's, is a ``wait.stuck`` event; None: never.
        monitor: Events and Stats that torch code logs by torch.monitor, for monitel's handlers.
        compilation: A range and events of what torch.compile compiles, and why again.
        failures: Events of uncaught exceptions, of memory that a GPU does not have, and of failed collectives.
        tensors: ``Stat.add(tensor)`` and ``emit(..., loss=tensor)`` that never wait for a device.
        compiled_adds: ``Stat.add`` in code that torch.compile compiles, which it leaves in one graph.
        phases: Time in backward and in the optimizer, and in forward of ``model``.
        model: Whose forward ``phases`` times.
        samples_per_step: For ``training.samples.rate``.
        tokens_per_step: For ``training.tokens.rate``.
        flops_per_step: The model's floating point operations in a step of this process, for ``training.mfu``.
        peak_flops: Operations a second that its device could do.
        window_size: Of all Stats, seconds.

    Raises:
        TypeError: A window_size that is no float, a model that is no module.
        ValueError: A number that is not positive; one of flops_per_step and peak_flops without the other; a model
            without phases.

    Example:
        >>> import monitel.torch
        >>> with monitel.torch.instrument(failures=False, compilation=False) as instrumentation:
        ...     instrumentation.sources
        ('steps', 'loading', 'waits', 'stuck_after', 'monitor', 'tensors', 'compiled_adds')
    """
    global _running
    choices = dict(locals())
    with _lock:
        if _running is not None and _running._choices == choices:
            return _running
        wanted = _sources(**choices)  # all are made, and so all arguments checked, before anything is changed
        if _running is not None:
            _running.uninstrument()
        _running = Instrumentation(choices, wanted)
        atexit.unregister(_end)
        atexit.register(_end)  # now, so that it is called before what the exporter has registered
        return _running


def _sources(
    *,
    steps: bool,
    loading: bool,
    waits: bool,
    stuck_after: float | None,
    monitor: bool,
    compilation: bool,
    failures: bool,
    tensors: bool,
    compiled_adds: bool,
    phases: bool,
    model: nn.Module | None,
    samples_per_step: float | None,
    tokens_per_step: float | None,
    flops_per_step: float | None,
    peak_flops: float | None,
    window_size: float,
) -> dict[str, Source]:
    work = Work(
        window_size,
        samples=samples_per_step,
        tokens=tokens_per_step,
        flops=flops_per_step,
        peak_flops=peak_flops,
    )
    if work and not steps:
        raise ValueError("rates are of steps: leave steps=True")
    if model is not None and not phases:
        raise ValueError("model is for phases=True, which times its forward")
    made: dict[str, tuple[bool, Callable[[], Source]]] = {
        "steps": (steps, lambda: Steps(window_size, work or None)),
        "loading": (loading, lambda: Loading(window_size)),
        "waits": (waits, Waits),
        "stuck_after": (stuck_after is not None, lambda: Stuck(stuck_after or 0.0)),
        "monitor": (monitor, Monitor),
        "compilation": (compilation, Compilation),
        "failures": (failures, Failures),
        "tensors": (tensors, lambda: Tensors(window_size)),
        "compiled_adds": (compiled_adds, CompiledAdds),
        "phases": (phases, lambda: Phases(window_size, model)),
    }
    return {name: make() for name, (on, make) in made.items() if on}


def _end() -> None:
    """At exit: end the thread, and what torch would crash with; what is still on a device is waited for.

    The rest stays, for the last look of exporters.
    """
    if _running is not None:
        _running._ticking.close()
        for source in _running._sources.values():
            if isinstance(source, (Monitor, Tensors)):
                try:
                    source.remove()
                except Exception:  # of a handler
                    _log.warning("a handler has failed at exit", exc_info=True)


def _go_on_without_thread() -> None:
    """In a forked child: hooks stay, the thread does not, and whose lock it held is not known."""
    global _lock
    _lock = RLock()
    if _running is not None:
        _running._ticking = Ticking([])
        for source in _running._sources.values():
            if isinstance(source, Tensors):
                source.forget()


os.register_at_fork(after_in_child=_go_on_without_thread)
