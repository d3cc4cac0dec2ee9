"""Deliver what an ended process has left in its spool."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from threading import Event, RLock
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from monitel_otlp.delivery.retry_queue import Outbox
from monitel_otlp.request import SIGNALS
from monitel_otlp.transport.http import TOO_OLD, Verdict
from monitel_otlp.spool.spool import Spool, SpoolError
from monitel_otlp.accounting import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.transport.http import Sender

_never = Event()  # never set: a pause that Ctrl-C ends
_LONGEST_ASKED = 60.0  # somebody is watching
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds after which a request is tried again
_HOUR = 3600.0
_PROMETHEUS, _LOKI = 1 * _HOUR, 7 * 24 * _HOUR  # seconds that they look back where nothing else is set


class Outcome(NamedTuple):
    """What became of a spool's items.

    Attributes:
        delivered: That many the backend took.
        too_old: That many it refused for their age; they are set aside.
        trouble: Why something is left; None where nothing is.
    """

    delivered: int
    too_old: int
    trouble: str | None


class _ReplayedSpool(Spool):
    too_old = 0

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        if TOO_OLD.search(reason):
            self.too_old += request.items
        return super().set_aside(request, reason)


def spool_folders(root: Path, *, rejected: bool = False) -> list[Path]:
    """The spools in a folder: it may be one itself, or hold those of many processes.

    Args:
        root: The folder.
        rejected: Also those in which nothing is left but what was set aside.

    Raises:
        SpoolError: There is none.
    """
    if not root.is_dir():
        raise SpoolError(f"there is no folder {str(root)!r}")
    folders = {path.parent for path in root.rglob("*.spool")}
    refused = {path.parents[1] for path in root.rglob("rejected/*.binpb")}
    if rejected:
        folders |= refused
    if not folders:
        left = "replay --rejected sends what was refused again" if refused else "nothing is left to deliver"
        raise SpoolError(f"{str(root)!r} holds no spooled telemetry: {left}")
    return sorted(folders)


def take_back(folders: Iterable[Path]) -> None:
    """Put what was set aside in some spools behind what waits there; not where a process still runs."""
    for folder in folders:
        with suppress(SpoolError), closing(Spool(folder)) as spool:
            spool.take_back()


def describe_age(folders: Iterable[Path]) -> list[str]:
    """Say in words how old the oldest data in some spools is, and what backends do with data of that age.

    It is the age of the requests, which are made within an export interval of what they hold.
    """
    ages = {}
    for signal in SIGNALS:
        oldest = [next(Spool(folder).peek([signal]), None) for folder in folders]
        created = [request.created_ns for request in oldest if request is not None]
        if created:
            ages[signal] = time.time() - min(created) / 1e9
    if not ages:
        return []
    age = max(ages.values())
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - age))
    lines = [f"the oldest data is from {then}, {_words(age)} ago"]
    if ages.get("metrics", 0.0) > _PROMETHEUS:
        lines.append(
            "Prometheus refuses metrics of that age, and they are set aside, unless its "
            f"storage.tsdb.out_of_order_time_window is {int(ages['metrics'] / _HOUR) + 2}h or more"
        )
    if ages.get("logs", 0.0) > _LOKI:
        lines.append(
            "Loki refuses log records that are more than a week old, and they are set aside, unless its "
            "reject_old_samples is false"
        )
    return lines


def _words(seconds: float) -> str:
    for name, size in (("day", 24 * _HOUR), ("hour", _HOUR), ("minute", 60.0)):
        if seconds >= 2 * size:
            return f"{int(seconds / size)} {name}s"
    return "less than two minutes"


def replay(folder: Path, routes: dict[str, Sender]) -> Outcome:
    """Deliver one spool, oldest first, and remove what was acknowledged.

    Interrupted or refused, it goes on from there when it is called again; the request that was under way may arrive
    twice.

    Args:
        folder: A folder that :func:`spool_folders` gave.
        routes: How to send.

    Returns:
        What was done, and what has kept it from doing more: the folder's process still runs, or the backend does not
        take it. What is left stays.
    """
    spool, tally, trouble = _ReplayedSpool(folder), Tally(), None
    try:
        spool.load()
        _deliver(spool, routes, tally)
    except SpoolError as error:
        trouble = str(error)
    finally:
        spool.close()
    return Outcome(sum(tally.total(signal) for signal in SIGNALS), spool.too_old, trouble)


def _deliver(spool: Spool, routes: dict[str, Sender], tally: Tally) -> None:
    """Deliver signal by signal, until one is not taken."""
    begin = spool.size_bytes
    with tqdm(total=begin, unit="B", unit_scale=True, desc=spool.folder.name, disable=None) as progress:
        for signal in SIGNALS:
            if spool.oldest(signal) is not None:
                if signal not in routes:
                    raise SpoolError(f"there are {signal} to deliver, and no endpoint for them: give --endpoint")
                outbox = Outbox(signal, routes[signal], spool, tally, RLock())
                try:
                    _empty(outbox, lambda: progress.update(begin - spool.size_bytes - progress.n))
                finally:
                    outbox.end()
                if outbox.trouble is not None:
                    why = f"{routes[signal].url}: {outbox.trouble.reason}"
                    raise SpoolError(f"{why}; the rest is still in {spool.folder}, run this again")


def _empty(outbox: Outbox, on_progress: Callable[[], object]) -> None:
    """Deliver until nothing is left, or the backend has not taken the oldest request for a while."""
    for pause in (*_PAUSES, None):
        while outbox.deliver_one():
            on_progress()
        if outbox.trouble is None or outbox.trouble.verdict is Verdict.REFUSED or pause is None:
            return
        asked = outbox.trouble.retry_after
        _never.wait(pause if asked is None else min(asked, _LONGEST_ASKED))
