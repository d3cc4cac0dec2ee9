"""Deliver what ended processes have left in their spools."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from tqdm import tqdm

from monitel_otlp.accounting import Accounting
from monitel_otlp.delivery.disk import Disk
from monitel_otlp.delivery.retry_queue import RetryQueue
from monitel_otlp.delivery.sender import Sender
from monitel_otlp.request import SIGNALS
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.spool import Spool, SpoolError
from monitel_otlp.transport.answer import Verdict
from monitel_otlp.transport.http import TOO_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.spool.discovery import Found
    from monitel_otlp.transport.answer import Transport

_never = Event()  # never set: a pause that Ctrl-C ends
_LONGEST_ASKED = 60.0  # seconds; somebody is watching
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds after which a request is tried again
_HOUR = 3600.0
_PROMETHEUS, _LOKI = 1 * _HOUR, 7 * 24 * _HOUR  # seconds that they look back where nothing else is set


@dataclass
class Outcome:
    """What became of the items in some spools.

    Attributes:
        delivered: Items that the backend accepted.
        too_old: Items that it refused for their age; they are set aside.
        set_aside: Items that it refused for another reason; they are set aside.
        set_aside_requests: Number of requests that were set aside, including those without items.
        lost: Items that are neither delivered nor kept, by reason.
        unreadable: Segments, blocks and records that could not be read.
        trouble: The cause why something is left; empty if nothing is.
    """

    delivered: int = 0
    too_old: int = 0
    set_aside: int = 0
    set_aside_requests: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    trouble: str = ""

    def add(self, other: Outcome) -> None:
        """Add the numbers of another outcome."""
        self.delivered += other.delivered
        self.too_old += other.too_old
        self.set_aside += other.set_aside
        self.set_aside_requests += other.set_aside_requests
        self.lost += other.lost
        self.unreadable += other.unreadable

    @property
    def complete(self) -> bool:
        """True if everything was delivered."""
        return not (self.set_aside_requests or self.lost or self.unreadable or self.trouble)


class _ReplayedSpool(Spool):
    """A spool that counts the refused requests that it keeps."""

    def __init__(self, folder: Path, outcome: Outcome, *, foreign: bool) -> None:
        super().__init__(folder, foreign=foreign)
        self._outcome = outcome

    def set_aside(self, request: FrozenRequest, reason: str) -> Path:
        path = super().set_aside(request, reason)
        if TOO_OLD.search(reason):
            self._outcome.too_old += request.items
        else:
            self._outcome.set_aside += request.items
        self._outcome.set_aside_requests += 1
        return path


def replay_all(root: Path, transports: Mapping[str, Transport], *, rejected: bool, foreign: bool) -> int:
    """Deliver every spool below a folder, and print what became of them.

    A spool that cannot be used is reported, and does not keep the others.

    Args:
        root: A spool, or a folder that holds spools.
        transports: How to send each signal.
        rejected: Send again what was refused.
        foreign: Use folders of other users too.

    Returns:
        The exit status: 0 if everything that was found was delivered.

    Raises:
        SpoolError: Nothing was found.
    """
    found = find_spools(root)
    problems = list(found.problems)
    folders = sorted({*found.folders, *(found.refused if rejected else ())})
    if not (folders or problems):
        raise SpoolError(nothing_left(root, found))
    if rejected:
        problems += _take_back(found.refused, foreign=foreign)
    for line in describe_age(folders, foreign=foreign):
        print(line, flush=True)  # before the progress bar
    total, used = Outcome(), 0
    for problem in problems:
        print(f"monitel_otlp: {problem}", file=sys.stderr)
    for folder in folders:
        try:
            outcome = replay(folder, transports, foreign=foreign)
        except (SpoolError, OSError) as error:
            problems.append(str(error))
            print(f"monitel_otlp: {error}", file=sys.stderr)
            continue
        used += 1
        total.add(outcome)
        if outcome.trouble:
            total.trouble = outcome.trouble
            print(f"monitel_otlp: {outcome.trouble}", file=sys.stderr)
    print(_summary(total, used, len(problems)))
    return 0 if total.complete and not problems else 1


def nothing_left(root: Path, found: Found) -> str:
    """Return a message for a folder without segments."""
    left = "replay --rejected sends what was refused again" if found.refused else "nothing is left to deliver"
    return f"{str(root)!r} holds no spooled telemetry: {left}"


def _summary(total: Outcome, used: int, unusable: int) -> str:
    lost = ", ".join(f"{reason} {items:,}" for reason, items in sorted(total.lost.items()))
    parts = {
        "refused for their age, and set aside in rejected/": total.too_old,
        "refused, and set aside in rejected/": total.set_aside,
        f"lost ({lost})": total.lost.total(),
        "unreadable segments or records": total.unreadable,
        "folders that cannot be used": unusable,
    }
    if total.set_aside_requests and not total.set_aside + total.too_old:
        parts["requests without items, refused, and set aside in rejected/"] = total.set_aside_requests
    more = "".join(f"; {name}: {number:,}" for name, number in parts.items() if number)
    return f"delivered {_count(total.delivered, 'item')} from {_count(used, 'spool')}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _take_back(folders: Iterable[Path], *, foreign: bool) -> list[str]:
    """Put what was set aside in some spools behind what waits there.

    Returns:
        The problems.
    """
    problems = []
    for folder in folders:
        try:
            with closing(Spool(folder, foreign=foreign)) as spool:
                spool.take_back()
        except (SpoolError, OSError) as error:
            problems.append(str(error))
    return problems


def describe_age(folders: Iterable[Path], *, foreign: bool = False) -> list[str]:
    """Describe how old the oldest data in some spools is, and what backends do with data of that age.

    It is the age of the requests, which are made within an export interval of what they hold.
    """
    ages: dict[str, float] = {}
    for folder in folders:
        for signal in SIGNALS:
            try:
                oldest = next(Spool(folder, foreign=foreign).peek([signal]), None)
            except (SpoolError, OSError):
                break  # the replay itself reports it
            if oldest is not None:
                ages[signal] = max(ages.get(signal, 0.0), time.time() - oldest.created_ns / 1e9)
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


def replay(folder: Path, transports: Mapping[str, Transport], *, foreign: bool = False) -> Outcome:
    """Deliver one spool, oldest first, and remove what was acknowledged.

    If it is interrupted or refused, the next call goes on from there; the request that was under way may arrive twice.

    Args:
        folder: A spool.
        transports: How to send each signal.
        foreign: Use the folder even if it belongs to another user.

    Returns:
        What was done, and why something is left.

    Raises:
        SpoolError: The folder cannot be used: its process still runs, or it is unsafe.
        OSError: The folder cannot be read or written.
    """
    outcome = Outcome()
    with closing(_ReplayedSpool(folder, outcome, foreign=foreign)) as spool:
        spool.load()
        begin = spool.size_bytes
        with tqdm(total=begin, unit="B", unit_scale=True, desc=folder.name, disable=None) as progress:
            for signal in SIGNALS:
                if spool.oldest(signal) is None:
                    continue
                if signal not in transports:
                    outcome.trouble = f"there are {signal} to deliver, and no endpoint for them: give --endpoint"
                    continue
                trouble = _replay_signal(
                    spool,
                    transports[signal],
                    signal,
                    outcome,
                    lambda: progress.update(begin - spool.size_bytes - progress.n),
                )
                if trouble:
                    outcome.trouble = trouble
                    break
        outcome.unreadable = spool.problems
    kept = outcome.too_old + outcome.set_aside
    for reason in ("rejected", "unconfirmed"):  # those that are lost could not be set aside
        taken = min(kept, outcome.lost[reason])
        outcome.lost[reason] -= taken
        kept -= taken
    outcome.lost = +outcome.lost
    return outcome


def _replay_signal(
    spool: Spool, transport: Transport, signal: str, outcome: Outcome, on_progress: Callable[[], object]
) -> str:
    """Deliver the requests of one signal, and count them.

    Returns:
        The reason why some are left; empty if none is.
    """
    accounting = Accounting()
    queue = RetryQueue(signal, accounting, Disk(spool), on_progress, online=True, stored=True)
    sender = Sender(queue, transport, Disk(spool), lambda _signal, _seconds: None)
    try:
        _deliver(sender, on_progress)
    finally:
        queue.end()
        queue.spill_rest()  # parts of a request that was taken apart
        account = accounting.account()[signal]
        outcome.delivered += account.delivered
        outcome.lost += Counter(account.dropped)
    outcome.lost += Counter(spool.take_lost(signal))
    if sender.trouble is None:
        return ""
    return f"{transport.url}: {sender.trouble.reason}; the rest is still in {spool.folder}, run this again"


def _deliver(sender: Sender, on_progress: Callable[[], object]) -> None:
    """Deliver until nothing is left, or the backend has not accepted the oldest request for a while."""
    for pause in (*_PAUSES, None):
        while sender.deliver_one():
            on_progress()
        if sender.trouble is None or sender.trouble.verdict is Verdict.REFUSED or pause is None:
            return
        asked = sender.trouble.retry_after
        _never.wait(pause if asked is None else min(asked, _LONGEST_ASKED))
