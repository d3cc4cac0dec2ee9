"""The phases of the exit (encode, prepare raw items, send, write the rest to disk), each with a share of the time."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from monitel_otlp.accounting import EXIT, Stage
from monitel_otlp.delivery.delivery import RawItems
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.raw.forms import raw_events, raw_ranges, raw_windows
from monitel_otlp.spool.raw_segment import encode_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monitel_otlp.accounting import Accounting
    from monitel_otlp.delivery.delivery import Delivery
    from monitel_otlp.engine.encoder import Encoder, Source
    from monitel_otlp.metrics.mapping import WindowMapping
    from monitel_otlp.raw.forms import RawForm
    from monitel_otlp.traces.mapping import RangeMapping

    RawForms = dict[str, Callable[[Any], RawForm]]

_log = logging.getLogger("monitel.otlp")

_MANY = 20_000  # items; most of them have to be written to disk unencoded
# Shares of the time to shut down that have passed when each phase ends.
_ENCODED = 0.4
_ENCODED_OF_MANY = 0.05
_SENT = 0.65
_PREPARED = 0.8
_STORED = 0.9
_STUCK = 0.05  # share of the time that the encoder may still take for the step that it has begun
_LEAST_STUCK = 0.05  # seconds for that step
_LEAST_FOR_DISK = 0.2  # seconds, even if there is no time to shut down


def raw_forms(windows: WindowMapping, ranges: RangeMapping, resource: bytes) -> RawForms:
    """Return, for each kind of source, the function that makes the raw form of its items.

    Args:
        windows: The mapping of windows, with its state.
        ranges: The mapping of ranges.
        resource: The resource as a message, serialized.
    """
    return {
        "windows": lambda items: raw_windows(list(items), windows, resource),
        "events": lambda items: raw_events(items, EventMapping(), resource),
        "ranges": lambda items: raw_ranges(items, ranges, resource),
    }


def run_exit_phases(
    encoder: Encoder,
    delivery: Delivery,
    accounting: Accounting,
    *,
    sources: Sequence[Source],
    forms: Callable[[], RawForms],
    timeout: float,
) -> bool:
    """Encode and send what is queued, and write the rest to disk. An exception ends one phase, not the others.

    Args:
        encoder: Makes its last round.
        delivery: Makes its last attempts.
        accounting: Counts the items.
        sources: The queues that may be written to disk.
        forms: Returns the result of :func:`raw_forms`, after the last round.
        timeout: Seconds at most.

    Returns:
        True if everything was encoded.
    """
    begin = time.monotonic()
    many = sum(len(source.queue) for source in sources) > _MANY
    encoded, raw = False, list[RawItems]()
    with _logged():
        deadline = begin + (_ENCODED_OF_MANY if many else _ENCODED) * timeout
        encoded = encoder.finish(deadline, max(_STUCK * timeout, _LEAST_STUCK))
    with _logged():
        deadline = max(begin + _PREPARED * timeout, time.monotonic() + _LEAST_FOR_DISK)
        raw = _prepare_raw(sources, accounting, forms(), deadline)
    with _logged():
        delivery.finish(begin + _SENT * timeout)
    with _logged():
        delivery.end(raw, max(begin + _STORED * timeout, time.monotonic() + _LEAST_FOR_DISK))
    return encoded


def _prepare_raw(sources: Sequence[Source], accounting: Accounting, forms: RawForms, deadline: float) -> list[RawItems]:
    """Take the items that could not be encoded in time, and return them as they are written to disk.

    Args:
        sources: The queues.
        accounting: Counts the items.
        forms: Result of :func:`raw_forms`.
        deadline: Monotonic time after which the rest is dropped, with reason ``exit``.
    """
    prepared = []
    for source in sources:
        if taken := accounting.take(source.signal, source.queue.take, sys.maxsize):
            written, tried = 0, len(taken)
            try:
                form = forms[source.kind](takewhile(lambda _: time.monotonic() < deadline, taken))
                items = RawItems(source.signal, form.header, encode_blocks(form.items))
                written, tried = items.items, form.tried
                prepared.append(items)
            except Exception:
                _log.exception("the queued %s cannot be written to disk and are dropped", source.kind)
            accounting.drop(source.signal, Stage.ENCODING, "encoding", tried - written)
            accounting.drop(source.signal, Stage.ENCODING, EXIT, len(taken) - tried)
    return prepared


@contextmanager
def _logged() -> Iterator[None]:
    """Log an exception of one phase, and continue with the next."""
    try:
        yield
    except Exception:
        _log.exception("a phase of the shutdown of telemetry failed")
