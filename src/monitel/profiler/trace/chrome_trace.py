"""Trace files for Perfetto, chrome://tracing and TensorBoard's trace viewer."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monitel.profiler.trace.atomic_file import atomic_file
from monitel.profiler.trace.json_text import json_text, quoted
from monitel.profiler.trace.lanes import Lanes
from monitel.profiler.trace.progress import with_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.profiler.trace.recording import Recorded, Recording

_SECOND_NS = 1_000_000_000
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
    lanes = Lanes()
    yield '{\n"schemaVersion": 1,\n"deviceProperties": [],\n'
    yield f'"trace_id": {quoted(recording.trace_id)},\n"host_name": {quoted(socket.gethostname())},\n'
    for key, text in recording.metadata.items():
        yield f"{quoted(key)}: {text},\n"
    yield f'"displayTimeUnit": "ms",\n"baseTimeNanoseconds": {base_ns},\n"traceEvents": [\n'
    yield _metadata_event("process_name", pid, 0, "name", "python")
    total = len(recording)
    for index, each in enumerate(with_progress(recording, total, f"writing {path}")):
        start_ns, end_ns = each.start_ns + offset_ns, each.end_ns + offset_ns
        tid = lanes.tid(each.range.track, start_ns, end_ns)
        yield (
            f',\n{{"ph":"X","cat":"user_annotation","name":{quoted(each.range.name)},"pid":{pid},"tid":{tid},'
            f'"ts":{_microseconds(start_ns)},"dur":{_microseconds(end_ns - start_ns)},"args":{_args(index, each)}}}'
        )
    for order, (tid, name) in enumerate(lanes.names()):
        yield ",\n" + _metadata_event("thread_name", pid, tid, "name", name)
        yield ",\n" + _metadata_event("thread_sort_index", pid, tid, "sort_index", order)
    yield f'\n],\n"traceName": {quoted(path)}\n}}\n'


def _metadata_event(kind: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{{"{key}":{json_text(value)}}}}}'


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def _args(index: int, each: Recorded) -> str:
    given, step = each.range.args, each.range.step
    if given is None and step is None and each.finished:
        return f'{{"Ev Idx":{index}}}'
    shown = dict(given) if isinstance(given, Mapping) else {} if given is None else {"args": given}
    if step is not None:
        shown["step"] = step
    if not each.finished:
        shown["finished"] = False
    return json_text({**shown, "Ev Idx": index})
