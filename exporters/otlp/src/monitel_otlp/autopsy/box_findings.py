"""Findings about the process of one black box."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.context_page import read_page
from monitel.os_threads import Event, Thread
from monitel_otlp.autopsy.findings import (
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
from monitel_otlp.autopsy.records import attributes_of, event_of, event_of_plain, identity_of, records_of, whole
from monitel_otlp.black_box.activity import Stage, since_cut_ns
from monitel_otlp.boxes.box_lock import has_called_exec
from monitel_otlp.collection.death import Deaths, death_of
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monitel.context_page import Context
    from monitel_otlp.black_box.contents import Contents, Window

SILENT_NS = 3 * 10**9  # the age of a heartbeat above which no Python code runs: there is one each second
_RANK = "training.rank"
_STEP_TIME = "training.step.duration"
_EVENTS = 1000  # the newest ones
_LARGEST_SPOOL = 32 << 20  # bytes
_PATIENCE_S = 2.0
_ENOUGH_STEPS = 5


def findings_of(box: Path, contents: Contents, *, alive: bool, earlier: Context | None = None) -> Findings:
    """Return the findings about a process.

    Args:
        box: The box.
        contents: The content of the box.
        alive: The process runs.
        earlier: The context page of the process some time ago; None if it was not read.
    """
    page = read_page(contents.context)
    spool, spooled = _spool_of(contents)
    found = Findings(
        source=box,
        state=State.ALIVE if alive else State.DEAD,
        identity=_identity(contents),
        started_ns=int(contents.header.created_ns),
        windows=sorted(_windows(contents), key=lambda each: (each.name, str(each.attributes))),
        counters=sorted(_counters(contents), key=lambda counter: (counter.name, str(counter.attributes))),
        events=_events(contents, spooled),
        undelivered=_undelivered(contents),
        spool=spool,
        problems=contents.problems,
    )
    now_ns = time.time_ns()
    if alive:
        if page.heartbeat_ns is not None:
            found.seen_ns = now_ns - max(time.monotonic_ns() - page.heartbeat_ns, 0)
            found.state = State.SILENT if now_ns - found.seen_ns > SILENT_NS else State.ALIVE
    else:
        death = death_of(contents, Deaths())
        found.seen_ns = death.time_ns
        found.death = "" if death.end is None else death.how
        found.replaced = has_called_exec(contents.header.owner)
        found.stacks = contents.stacks
    _add_activity(found, contents, page, now_ns if alive else found.seen_ns)
    found.steps_per_second = _rate(found, page, earlier)
    return found


def _add_activity(found: Findings, contents: Contents, page: Context, at_ns: int) -> None:
    """Add what the process was doing at a time, Unix ns."""

    def age_ns(monotonic_ns: int | None) -> int | None:
        began_ns = None if monotonic_ns is None else page.unix_ns(monotonic_ns)
        return None if began_ns is None else max(at_ns - began_ns, 0)

    doing = {} if contents.cut is None else contents.cut.context
    cut_ns = None if contents.cut is None else contents.cut.time_ns

    def grown_ns(seconds: float) -> int:
        return round(seconds * 1e9) + since_cut_ns(at_ns, cut_ns, None)

    if page.heartbeat_ns is None:  # there is no page
        found.step = whole(doing.get("step"))
        waits = [Wait(str(key), grown_ns(seconds), int(thread)) for key, thread, seconds in doing.get("waits", ())]
    else:
        found.step, found.step_age_ns = page.step, age_ns(page.step_ns)
        waits = [Wait(each.key, age_ns(each.start_ns) or 0, each.thread) for each in page.waits]
    found.waits, found.waits_left_out = sorted(waits, key=lambda wait: -wait.age_ns), page.waits_left_out
    found.ranges = [OpenRange(str(name), grown_ns(seconds)) for name, seconds in doing.get("ranges", ())]
    since_ns = since_cut_ns(at_ns, cut_ns, found.step_age_ns)
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
        if window.name == _STEP_TIME and window.count and window.sum > 0:
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


def _identity(contents: Contents) -> Identity:
    owner = contents.header.owner
    resource = ResourceMetrics.FromString(contents.header.resource).resource
    names = identity_of(attributes_of(resource.attributes))
    return names._replace(pid=whole(owner.pid), host=names.host or owner.host)


def _undelivered(contents: Contents) -> Undelivered:
    requests = (*contents.requests, *contents.parts)
    return Undelivered(
        requests=len(requests),
        items=sum(request.items for request in requests),
        events=len(contents.events),
        windows=len(contents.windows),
        samples=sum(window.snapshot.count for window in contents.windows),
    )


def _windows(contents: Contents) -> Iterator[Numbers]:
    """Yield the newest window of each Stat."""
    newest: dict[int, Window] = {}
    for window in contents.windows:
        known = newest.get(window.stat.serial)
        if known is None or known.snapshot.end_ns <= window.snapshot.end_ns:
            newest[window.stat.serial] = window
    for window in newest.values():
        _, name, unit, _, _, attributes, *_ = contents.series[window.stat.series].plain
        numbers = window.snapshot
        yield Numbers(
            str(name),
            _of_messages(attributes),
            str(unit),
            *(numbers.count, numbers.sum, numbers.last, numbers.min, numbers.max),
            *(numbers.start_ns, numbers.first_step, numbers.last_step),
        )


def _counters(contents: Contents) -> Iterator[CounterValue]:
    for name, _, _, attributes, total, *_ in contents.cut.counters if contents.cut is not None else ():
        yield CounterValue(str(name), _of_messages(attributes), total if isinstance(total, int) else float(total))


def _of_messages(attributes: Iterable[bytes]) -> dict[str, Any]:
    """Return serialized attributes, without the rank, as built-in values."""
    found = attributes_of(KeyValue.FromString(each) for each in attributes)
    found.pop(_RANK, None)
    return found


def _events(contents: Contents, spooled: Iterable[PastEvent]) -> list[PastEvent]:
    """Return the last events, the oldest first: those that no backend has acknowledged."""
    found = deque(spooled, _EVENTS)
    for request in (*contents.requests, *contents.parts):
        if request.signal == "logs":
            found.extend(event_of(record) for _, record in records_of(request))
    found.extend(map(event_of_plain, contents.events))
    return sorted(found, key=lambda event: event.time_ns)


def _spool_of(contents: Contents) -> tuple[Path | None, list[PastEvent]]:
    """Return the spool of the process, if it exists, and the events in it.

    The spool may be on a file system that hangs, which may be why the process hangs. So it is read in a thread, and
    left out if that takes too long. It is also left out if it is large.
    """
    folder = Path(contents.header.spool_dir)
    if not (contents.header.spool_dir and folder.is_absolute()):
        return None, []
    found: list[PastEvent] = []
    seen = Event()

    def read() -> None:
        with suppress(Exception):  # the spool may be damaged in any way
            size = sum(file.stat().st_size for file in folder.iterdir() if file.name.startswith("logs-"))
            seen.set()
            for request in Spool(folder).peek(["logs"]) if size <= _LARGEST_SPOOL else ():
                found.extend(event_of(record) for _, record in records_of(request))

    thread = Thread(target=read, name="monitel-autopsy-spool", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return folder if seen.is_set() else None, found.copy()
