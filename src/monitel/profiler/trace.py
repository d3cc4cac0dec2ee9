"""Recordings of ranges, and trace files of recordings for Perfetto, chrome://tracing and TensorBoard's trace viewer."""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from monitel.profiler import ranges
from monitel.profiler.ranges import Listening, Range, Track

_start = attrgetter("monotonic_start_ns")
_pause_began_ns = -1  # collections do not overlap: the interpreter runs one at a time


#: A range, its beginning and its end in monotonic ns, and whether it has finished. A range that still runs when the
#: recording stops ends at the stop.
Recorded: TypeAlias = "tuple[Range, int, int, bool]"

_SECOND_NS = 1_000_000_000
_AT_ONCE = 1000  # lines
_FIRST_EXTRA_TID = 1 << 22  # thread ids of Linux are smaller
#: Keys that every trace has, so that metadata cannot use them.
RESERVED_KEYS = frozenset(
    {
        *("schemaVersion", "deviceProperties", "trace_id", "host_name", "displayTimeUnit"),
        *("baseTimeNanoseconds", "traceEvents", "traceName"),
    }
)
_encode = json.JSONEncoder(separators=(",", ":")).encode
_LARGEST = 2**1000  # readers do not accept larger numbers
_MAX_DEPTH = 8  # values nested deeper are converted to text


class Recording:
    """Collects every range that begins between :meth:`start` and :meth:`stop`, in all threads. Nothing is dropped."""

    def __init__(self, trace_id: str, *, gc_pauses: bool = False) -> None:
        self.trace_id = trace_id
        self.metadata: dict[str, str] = {}  # JSON text by key
        self.epoch_ns = 0
        self.start_ns = -1
        self.stop_ns: int | None = None
        self._gc_pauses = gc_pauses
        self._began: list[Range] = []
        self._listening: Listening | None = None

    @property
    def running(self) -> bool:
        """True between :meth:`start` and :meth:`stop`."""
        return self.start_ns >= 0 and self.stop_ns is None

    def start(self) -> None:
        """Record from now on."""
        self.epoch_ns = ranges.synchronize()
        self.start_ns = ranges.now()
        self.toggle(on=True)
        self._gc_pauses &= _on_collection not in gc.callbacks  # else another profile includes them
        if self._gc_pauses:
            gc.callbacks.append(_on_collection)

    def toggle(self, *, on: bool) -> None:
        """Omit the ranges that begin from now on, or include them again."""
        if on and self._listening is None:
            self._listening = ranges.listen(began=self._began.append)
        elif not on and self._listening is not None:
            self._listening.close()
            self._listening = None

    def stop(self) -> None:
        """Stop recording."""
        self.toggle(on=False)
        self.stop_ns = ranges.now()
        if self._gc_pauses:
            gc.callbacks.remove(_on_collection)

    def __len__(self) -> int:
        return len(self._began)

    def __iter__(self) -> Iterator[Recorded]:
        """Yield the ranges recorded so far by start, outer ranges first if the start is the same."""
        first_ns, stop_ns = self.start_ns, ranges.now() if self.stop_ns is None else self.stop_ns
        for each in sorted(self._began, key=_start):  # almost in order: threads append concurrently
            start_ns, end_ns = each.monotonic_start_ns, each.monotonic_end_ns
            if start_ns >= first_ns:  # else it was recorded at its end, as a training step
                finished = 0 <= end_ns <= stop_ns
                yield each, start_ns, end_ns if finished else stop_ns, finished


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    """Record a pause of Python's garbage collector as a range."""
    global _pause_began_ns
    if phase == "start":
        _pause_began_ns = ranges.now()
    elif _pause_began_ns >= 0:
        start_ns, _pause_began_ns = _pause_began_ns, -1
        ranges.record_past("Python GC", start_ns, ranges.now(), dict(info))


def write_chrome_trace(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording in torch.profiler's format; times are microseconds since baseTimeNanoseconds."""
    name = os.fspath(path)
    lines = _lines(recording, name)
    with atomic_file(name) as file:
        while text := "".join(islice(lines, _AT_ONCE)):
            file.write(text)


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
    for index, (each, start_ns, end_ns, finished) in enumerate(recording):
        begin = _begin(each.name, pid, lanes.tid(each.track, start_ns, end_ns))
        plain = finished and each.args is None and each.step is None
        args = "" if plain else _args(each, finished)
        at, took = str(start_ns + offset_ns).zfill(4), str(end_ns - start_ns).zfill(4)  # ns, faster than by arithmetic
        yield (
            f'{begin}{at[:-3]}.{at[-3:]},"dur":{took[:-3]}.{took[-3:]},"args":{{{args}'
            f'"External id":{index + 1},"Record function id":{each.number},"Ev Idx":{index}}}}}'
        )
    for order, (tid, name) in enumerate(lanes.names()):
        yield ",\n" + _metadata_event("thread_name", pid, tid, "name", name)
        yield ",\n" + _metadata_event("thread_sort_index", pid, tid, "sort_index", order)
    yield f'\n],\n"traceName": {quoted(path)}\n}}\n'


def _metadata_event(kind: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{{"{key}":{json_text(value)}}}}}'


@lru_cache(maxsize=4096)
def _begin(name: str, pid: int, tid: int) -> str:
    return f',\n{{"ph":"X","cat":"user_annotation","name":{quoted(name)},"pid":{pid},"tid":{tid},"ts":'


def _args(each: Range, finished: bool) -> str:
    """Return the details of a range as the beginning of a JSON object, without braces."""
    given, step = each.args, each.step
    plain = _plain(given, _MAX_DEPTH)
    shown = plain if isinstance(plain, dict) else {} if given is None else {"args": plain}
    if step is not None:
        shown["step"] = step
    if not finished:
        shown["finished"] = False
    for key in ("External id", "Record function id", "Ev Idx"):
        shown.pop(key, None)
    return _encode(shown)[1:-1] + ("," if shown else "")


class _Lanes:
    """Assigns a lane (a ``tid`` of the trace) to each range, in order of their start: that of its thread or task.

    A range that overlaps others of its track without nesting, as in generators, is in an additional lane of the track.
    """

    def __init__(self) -> None:
        self._lanes: dict[Track, list[tuple[int, list[int]]]] = {}  # tid, and the ends of open ranges, of each lane
        self._last_extra_tid = _FIRST_EXTRA_TID
        self._threads: set[int] = set()

    def tid(self, track: Track, start_ns: int, end_ns: int) -> int:
        """Return the lane of a range."""
        if (lanes := self._lanes.get(track)) is None:
            lanes = self._lanes[track] = []
        for tid, ends in lanes:
            while ends and ends[-1] <= start_ns:
                del ends[-1]
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return tid
        tid = self._new_tid(track)
        lanes.append((tid, [end_ns]))
        return tid

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield each lane and its name."""
        for track, lanes in self._lanes.items():
            for number, (tid, _) in enumerate(lanes, 1):
                yield tid, f"{track}" if number == 1 else f"{track}, {number}"

    def _new_tid(self, track: Track) -> int:
        if track.task_name is None and track.thread_id not in self._threads:
            self._threads.add(track.thread_id)
            return track.thread_id
        self._last_extra_tid += 1
        return self._last_extra_tid


def json_text(value: Any) -> str:
    """Return a value as JSON. What JSON cannot represent, such as NaN or a tensor, becomes text."""
    return _encode(_plain(value, _MAX_DEPTH))


def quoted(text: str) -> str:
    """Return a str as JSON."""
    return json.dumps(well_formed(text))


def one_line(text: str) -> str:
    """Return JSON text on one line, with spaces after colons: HolisticTraceAnalysis finds ``"rank": 0`` by them."""
    return json.dumps(json.loads(text, parse_constant=_refuse))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def well_formed(text: str) -> str:
    """Return text that can be encoded: unpaired surrogates become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any, depth: int) -> Any:
    if value is None or type(value) is bool or (type(value) in {int, float} and abs(value) < _LARGEST):
        return value  # not a NaN: comparisons with it are false
    try:
        if depth and isinstance(value, Mapping):
            return {well_formed(str(key)): _plain(each, depth - 1) for key, each in value.items()}
        if depth and isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(each, depth - 1) for each in value]
        return well_formed(str(value))
    except Exception as error:  # raised by the class of the value, or of a key
        return f"<{type(value).__qualname__} raised {type(error).__qualname__}>"


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Write a text file, compressed if its name ends with ``.gz``, under a temporary name, and rename it at the end.

    A path that is not a regular file, such as a pipe or ``/dev/null``, is written to directly.
    """
    target = target_of(path)
    if target.exists() and not target.is_file():
        with _open(target, "wt", target) as file:
            yield file
        return
    beside = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with _open(beside, "xt", target) as file:
            yield file
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as a Path; raise FileNotFoundError if its folder does not exist."""
    target = Path(os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder to write to", str(target.parent))
    return target


def _open(path: Path, mode: str, target: Path) -> IO[str]:
    if target.name.endswith(".gz"):
        import gzip  # here, because most traces do not need it

        return cast("IO[str]", gzip.open(path, mode, compresslevel=6, encoding="utf-8"))
    return cast("IO[str]", path.open(mode.replace("t", ""), encoding="utf-8"))
