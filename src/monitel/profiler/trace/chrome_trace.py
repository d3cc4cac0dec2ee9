"""Trace files for Perfetto, chrome://tracing and TensorBoard's trace viewer."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from monitel.profiler.trace.atomic_file import atomic_file
from monitel.profiler.trace.json_text import json_text, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.ranges import Range, Track
    from monitel.profiler.trace.recording import Recorded, Recording

_EVENT = '%s%d.%03d,"dur":%d.%03d,"args":{%s"Record function id":%d,"Ev Idx":%d}}'  # faster than an f-string
_SECOND_NS = 1_000_000_000
_FIRST_EXTRA_TID = 1 << 22  # thread ids of Linux are smaller
_EVERY = 1 << 14  # ranges between two readings of the clock
_INTERVAL = 1.0  # seconds before the first report of progress, and between reports
#: Keys that every trace has, so that metadata cannot use them.
RESERVED_KEYS = frozenset(
    {
        *("schemaVersion", "deviceProperties", "trace_id", "host_name", "displayTimeUnit"),
        *("baseTimeNanoseconds", "traceEvents", "traceName"),
    }
)


def write_chrome_trace(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording in torch.profiler's format; times are microseconds since baseTimeNanoseconds."""
    name = os.fspath(path)
    with atomic_file(name) as file:
        file.writelines(_lines(recording, name))


def _lines(recording: Recording, path: str) -> Iterator[str]:
    base_ns = (recording.epoch_ns + max(recording.start_ns, 0)) // _SECOND_NS * _SECOND_NS
    offset_ns = recording.epoch_ns - base_ns
    pid = os.getpid()
    lanes = _Lanes()
    yield '{\n"schemaVersion": 1,\n"deviceProperties": [],\n'
    yield f'"trace_id": {quoted(recording.trace_id)},\n"host_name": {quoted(socket.gethostname())},\n'
    for key, text in recording.metadata.items():
        yield f"{quoted(key)}: {text},\n"
    yield f'"displayTimeUnit": "ms",\n"baseTimeNanoseconds": {base_ns},\n"traceEvents": [\n'
    yield _metadata_event("process_name", pid, 0, "name", "python")
    for index, (each, start_ns, end_ns, finished) in enumerate(_with_progress(recording, path)):
        begin = _begin(each.name, pid, lanes.tid(each.track, start_ns, end_ns))
        plain = finished and each.args is None and each.step is None
        args = "" if plain else _args(each, finished)
        at, took = start_ns + offset_ns, end_ns - start_ns
        yield _EVENT % (begin, at // 1000, at % 1000, took // 1000, took % 1000, args, each.number, index)
    for order, (tid, name) in enumerate(lanes.names()):
        yield ",\n" + _metadata_event("thread_name", pid, tid, "name", name)
        yield ",\n" + _metadata_event("thread_sort_index", pid, tid, "sort_index", order)
    yield f'\n],\n"traceName": {quoted(path)}\n}}\n'


def _metadata_event(kind: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{{"{key}":{json_text(value)}}}}}'


@lru_cache(maxsize=4096)
def _begin(name: str, pid: int, tid: int) -> str:
    """Return the beginning of a range's event, up to its time."""
    return f',\n{{"ph":"X","cat":"user_annotation","name":{quoted(name)},"pid":{pid},"tid":{tid},"ts":'


def _args(each: Range, finished: bool) -> str:
    """Return the details of a range as the beginning of a JSON object, without braces."""
    given, step = each.args, each.step
    shown = dict(given) if isinstance(given, Mapping) else {} if given is None else {"args": given}
    if step is not None:
        shown["step"] = step
    if not finished:
        shown["finished"] = False
    for key in ("Record function id", "Ev Idx"):
        shown.pop(key, None)
    return json_text(shown)[1:-1] + ("," if shown else "")


def _with_progress(recording: Recording, path: str) -> Iterator[Recorded]:
    """Yield the ranges; after a second, show the progress if standard error is a terminal."""
    total, updated, shown = len(recording), time.monotonic(), False
    for done, each in enumerate(recording):
        if done % _EVERY == 0 and done and time.monotonic() - updated >= _INTERVAL and sys.stderr.isatty():
            updated, shown = time.monotonic(), True
            sys.stderr.write(f"\rwriting {path}: {done:,} of {total:,} ({done / total:.0%})")
            sys.stderr.flush()
        yield each
    if shown:
        sys.stderr.write(f"\rwriting {path}: {total:,} of {total:,} (100%)\n")


class _Lanes:
    """Assigns a line (a ``tid`` of the trace) to each range. Ranges must be passed in order of their start.

    The line of a thread has the thread's id. Each task has a separate line. A range that overlaps others of its track
    without nesting, as ranges in generators can, goes to an additional line of the track.
    """

    def __init__(self) -> None:
        self._lines: dict[Track, list[tuple[int, list[int]]]] = {}  # tid, and the ends of open ranges, of each line
        self._last_extra_tid = _FIRST_EXTRA_TID
        self._threads: set[int] = set()

    def tid(self, track: Track, start_ns: int, end_ns: int) -> int:
        """Return the line of a range."""
        lines = self._lines.setdefault(track, [])
        for tid, ends in lines:
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return tid
        tid = self._new_tid(track)
        lines.append((tid, [end_ns]))
        return tid

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield each line and its name."""
        for track, lines in self._lines.items():
            for number, (tid, _) in enumerate(lines, 1):
                yield tid, f"{track}" if number == 1 else f"{track}, {number}"

    def _new_tid(self, track: Track) -> int:
        if track.task_name is None and track.thread_id not in self._threads:
            self._threads.add(track.thread_id)
            return track.thread_id
        self._last_extra_tid += 1
        return self._last_extra_tid
