"""Findings about the process of one black box."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from monitel.blackbox.activity import Stage, since_snapshot_ns
from monitel.blackbox.death import Deaths, death_of
from monitel.blackbox.discovery import SILENT_NS, has_called_exec
from monitel.blackbox.folder import Folder
from monitel.blackbox.forms import STEP_TIME
from monitel.blackbox.reading import read_record
from monitel.console.autopsy.findings import (
    CounterValue,
    Findings,
    Identity,
    Numbers,
    OpenRange,
    PastEvent,
    State,
    Undelivered,
    Wait,
)
from monitel.console.autopsy.records import event_of_plain, identity_of, whole
from monitel.os_threads import Event, Thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from monitel.blackbox.reading import Record, Window
    from monitel.context_page import Context

_RANK = "training.rank"
_EVENTS = 1000  # the newest ones
_LARGEST_SPOOL = 32 << 20  # bytes
_PATIENCE_S = 2.0
_ENOUGH_STEPS = 5


def findings_of(record: Record, *, alive: bool, earlier: Context | None = None) -> Findings:
    """Return the findings about a process.

    Args:
        record: The content of its box.
        alive: The process runs.
        earlier: The context page of the process some time ago; None if it was not read.
    """
    page = record.page
    spool, spooled = _spool_of(record)
    found = Findings(
        source=record.path,
        state=State.ALIVE if alive else State.DEAD,
        identity=identity_of_record(record),
        started_ns=record.created_ns,
        windows=sorted(_windows(record), key=lambda each: (each.name, str(each.attributes))),
        counters=sorted(_counters(record), key=lambda counter: (counter.name, str(counter.attributes))),
        events=_events(record, spooled),
        undelivered=_undelivered(record),
        spool=spool,
        exception=record.exception,
        problems=record.problems,
    )
    now_ns = time.time_ns()
    if alive:
        if page.heartbeat_ns is not None:
            found.seen_ns = now_ns - max(time.monotonic_ns() - page.heartbeat_ns, 0)
            found.state = State.SILENT if now_ns - found.seen_ns > SILENT_NS else State.ALIVE
    else:
        death = death_of(record, Deaths())
        found.seen_ns = death.time_ns
        found.death = "" if death.end is None else death.how
        found.replaced = has_called_exec(record.owner)
        found.stacks = record.stacks or record.stack
    _add_activity(found, record, now_ns if alive else found.seen_ns)
    found.steps_per_second = _rate(found, page, earlier)
    return found


def _add_activity(found: Findings, record: Record, at_ns: int) -> None:
    """Add what the process was doing at a time, Unix ns."""
    page, doing, snapshot_ns = record.page, record.doing, record.snapshot_ns

    def age_ns(monotonic_ns: int | None) -> int | None:
        began_ns = None if monotonic_ns is None else page.unix_ns(monotonic_ns)
        return None if began_ns is None else max(at_ns - began_ns, 0)

    def grown_ns(seconds: float) -> int:
        return round(seconds * 1e9) + since_snapshot_ns(at_ns, snapshot_ns, None)

    if page.heartbeat_ns is None:  # there is no page
        found.step = whole(doing.get("step"))
        waits = [Wait(str(key), grown_ns(seconds), int(thread)) for key, thread, seconds in doing.get("waits", ())]
    else:
        found.step, found.step_age_ns = page.step, age_ns(page.step_ns)
        waits = [Wait(each.key, age_ns(each.start_ns) or 0, each.thread) for each in page.waits]
    found.waits, found.waits_left_out = sorted(waits, key=lambda wait: -wait.age_ns), page.waits_left_out
    found.ranges = [OpenRange(str(name), grown_ns(seconds)) for name, seconds in doing.get("ranges", ())]
    since_ns = since_snapshot_ns(at_ns, snapshot_ns, found.step_age_ns)
    found.stage = Stage.of(doing, since_ns)
    if doing.get("activity"):
        activity, seconds = doing["activity"]
        found.activity, found.activity_age_ns = str(activity), round(seconds * 1e9) + since_ns


def _rate(found: Findings, page: Context, earlier: Context | None) -> float | None:
    """Return steps per second: from two looks at the page, the Stat of the steps, or the steps of a window."""
    if earlier is not None and None not in {earlier.step, earlier.step_ns, page.step, page.step_ns}:
        steps, elapsed_ns = page.step - earlier.step, page.step_ns - earlier.step_ns  # type: ignore[operator]
        if steps > 0 and elapsed_ns > 0:
            return steps * 1e9 / elapsed_ns
    for window in found.windows:
        if window.name == STEP_TIME and window.count and window.sum > 0:
            return window.count / window.sum
    set_ns = None if page.step_ns is None else page.unix_ns(page.step_ns)
    if set_ns is None or page.step is None:
        return None
    rates = [
        (page.step - window.first_step) * 1e9 / (set_ns - window.start_ns)
        for window in found.windows
        if window.first_step is not None and page.step - window.first_step >= _ENOUGH_STEPS and set_ns > window.start_ns
    ]
    return max(rates, default=None)  # a window may begin long before its first sample


def identity_of_record(record: Record) -> Identity:
    """Return the names of the process of a record."""
    names = identity_of(record.attributes)
    return names._replace(pid=whole(record.owner.pid), host=names.host or record.owner.host)


def _undelivered(record: Record) -> Undelivered:
    waiting, opened = record.waiting, [] if "metrics" in record.off else record.open_windows
    return Undelivered(
        items=waiting.get("metrics", 0) + waiting.get("traces", 0),
        events=waiting.get("logs", 0),
        windows=len(opened),
        samples=sum(each.window.snapshot.count for each in opened),
    )


def _windows(record: Record) -> Iterator[Numbers]:
    """Yield the newest window of each Stat, unless a backend has it."""
    newest: dict[int, Window] = {}
    for each in record.windows:
        if 0 < each.item <= record.settled.get("metrics", 0):
            continue
        known = newest.get(each.window.serial)
        if known is None or known.window.snapshot.end_ns <= each.window.snapshot.end_ns:
            newest[each.window.serial] = each
    for each in newest.values():
        numbers = each.window.snapshot
        yield Numbers(
            each.series.name,
            _without_rank(each.series.attributes),
            each.series.unit,
            *(numbers.count, numbers.sum, numbers.last, numbers.min, numbers.max),
            *(numbers.start_ns, numbers.first_step, numbers.last_step),
        )


def _counters(record: Record) -> Iterator[CounterValue]:
    for name, _, _, attributes, total, *_ in record.counters:
        yield CounterValue(str(name), _without_rank(attributes), total if isinstance(total, int) else float(total))


def _without_rank(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key != _RANK}


def _events(record: Record, spooled: Iterable[PastEvent]) -> list[PastEvent]:
    """Return the last events, the oldest first: those that no backend has acknowledged."""
    found = deque(spooled, _EVENTS)
    found.extend(map(event_of_plain, record.events))
    return sorted(found, key=lambda event: event.time_ns)


def _spool_of(record: Record) -> tuple[Path | None, list[PastEvent]]:
    """Return the spool of the process, if it exists, and the events in it.

    The spool may be on a file system that hangs, which may be why the process hangs. So it is read in a thread, and
    left out if that takes too long. It is also left out if it is large.
    """
    path = record.spool
    if path is None or not path.is_absolute():
        return None, []
    found: list[PastEvent] = []
    seen = Event()

    def read() -> None:
        with suppress(Exception):  # the spool may be damaged in any way
            size = sum(file.stat().st_size for file in path.iterdir() if file.name.startswith("logs-"))
            seen.set()
            if size <= _LARGEST_SPOOL:
                with closing(Folder.open(path, probe=False)) as folder:
                    found.extend(map(event_of_plain, read_record(folder, journals=["logs"]).events))

    thread = Thread(target=read, name="monitel-autopsy-spool", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return path if seen.is_set() else None, found.copy()
