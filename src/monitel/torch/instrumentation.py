"""instrument() and what it gives back."""

from __future__ import annotations

import logging
import os
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

from monitel.torch._compat import Missing
from monitel.torch.loading import Loading
from monitel.torch.phases import Phases
from monitel.torch.steps import Steps
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

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources that run."""
        return tuple(self._sources)

    def uninstrument(self) -> None:
        """Leave torch as it was, and log what was collected; a second time does nothing."""
        global _running
        with _lock:
            if _running is self:
                _running = None
            sources, self._sources = self._sources, {}
        for source in reversed(sources.values()):
            source.remove()

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
        >>> with monitel.torch.instrument(samples_per_step=32) as instrumentation:
        ...     instrumentation.sources
        ('steps', 'loading')
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
        return _running


def _sources(
    *,
    steps: bool,
    loading: bool,
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
        "phases": (phases, lambda: Phases(window_size, model)),
    }
    return {name: make() for name, (on, make) in made.items() if on}


def _renew_lock() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)
