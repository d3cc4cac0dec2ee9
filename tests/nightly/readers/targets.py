"""The readers of files that other processes have written, each as a function of bytes that checks what it reads.

An input of a target is the content of one file, or an archive of the files of a folder (see :func:`pack_archive`).
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import struct
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.spools import drain

from monitel.context_page import read_page
from monitel.window_bytes import decode, encode
from monitel_otlp.__main__ import main
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.black_box.event_journal import read_journal
from monitel_otlp.boxes.layout import COLLECTED, CORRUPT, LOCK, BoxError
from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.commands import parser
from monitel_otlp.compare.prometheus_api import PrometheusApi, QueryError, Sample, samples
from monitel_otlp.ledger.history import run_time
from monitel_otlp.ledger.run_folder import FILE, LEDGERS
from monitel_otlp.ledger.stored import StoredError
from monitel_otlp.ledger.stored import decode as decode_history
from monitel_otlp.ledger.stored import encode as encode_history
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.raw.decoders import decoders
from monitel_otlp.spool import request_segment
from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.spool.position import Position
from monitel_otlp.spool.raw_segment import RawReader
from monitel_otlp.spool.request_segment import NotRecognisedError, RecordReader
from monitel_otlp.spool.spool import Spool
from monitel_otlp.threads.pacing import Pace
from monitel_otlp.values.file import VALUES
from monitel_otlp.values.stored import ValuesError
from monitel_otlp.values.stored import decode as decode_values
from monitel_otlp.values.stored import encode as encode_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.spool.request_segment import SegmentReader

_LENGTHS = struct.Struct("<BI")  # of a name and of the content
_MOST = 8  # requests after which a reader is stopped and continued
_BOX = "4194000-1-0000aa"
_numbers = count()


def pack_archive(files: dict[str, bytes]) -> bytes:
    """Return files as one input."""
    named = [(name.encode(), each) for name, each in files.items()]
    return b"".join(_LENGTHS.pack(len(name), len(each)) + name + each for name, each in named)


def unpack_archive(content: bytes) -> dict[str, bytes]:
    """Return the files of an input, up to the first damage."""
    files, offset = {}, 0
    while offset + _LENGTHS.size <= len(content):
        name_length, length = _LENGTHS.unpack_from(content, offset)
        begin = offset + _LENGTHS.size + name_length
        name = content[offset + _LENGTHS.size : begin].decode("ascii", "replace")
        if not (name.isascii() and name.isprintable()) or "/" in name or name in {"", ".", ".."}:
            break
        files[name] = content[begin : begin + length]
        offset = begin + length
    return files


def requests_of_a_segment(content: bytes) -> None:
    """Each request is a part of the file with the right checksum, and none is read twice."""
    found = _read(content, lambda descriptor, position: RecordReader(descriptor, "logs", position, _ignore))
    former = not request_segment.MAGIC.startswith(content[: len(request_segment.MAGIC)])
    for request in found:
        assert (request.body if former else request_segment.pack(request)) in content
    assert sum(len(request.body) + len(request.weights) for request in found) <= len(content)


def items_of_a_segment(content: bytes) -> None:
    """Raw items become requests that can be decoded."""
    for request in _read(content, lambda descriptor, position: RawReader(descriptor, decoders, position, _ignore)):
        request.message()
        assert request.items >= 0


def journal(content: bytes) -> None:
    """The events of a file that is cut off are the first ones of the whole file."""
    whole = [number for number, _ in read_journal(content)]
    for end in (len(content) - 1, len(content) // 2):
        cut_off = [number for number, _ in read_journal(content[:end])]
        assert cut_off == whole[: len(cut_off)]


def context_page(content: bytes) -> None:
    """Reading never raises."""
    context = read_page(content)
    assert len(context.waits) <= 48
    assert all(len(wait.key) <= 47 for wait in context.waits)
    assert context.step is None or context.step >= 0


def open_windows(content: bytes) -> None:
    """Windows are read as they were written, or ValueError is raised."""
    with suppress(ValueError):
        written = b"".join(map(encode, decode(content)))
        assert written == b"".join(map(encode, decode(written)))


def spool(content: bytes) -> None:
    """Each reader of a spool finds the same, and nothing twice."""
    with _folder(unpack_archive(content)) as folder:
        _, output, errors = _command("cat", str(folder))
        assert "Traceback" not in errors
        for line in output.splitlines():
            json.loads(line)
        with closing(Spool(folder)) as whole:
            peeked = list(whole.peek())
            whole.load()
            drained = {signal: drain(whole, signal) for signal in SIGNALS}
            assert peeked == [request for signal in SIGNALS for request in drained[signal]]
            assert all(whole.items(signal) == 0 for signal in SIGNALS)


def box(content: bytes) -> None:
    """A box is read, becomes a spool once, or is set aside."""
    files = {LOCK: b"", **unpack_archive(content)}
    with _folder(files, _BOX) as path, closing(Folder.open(path)) as folder:
        _autopsy(path)
        with suppress(BoxError):
            read_box(folder)
        root, runs = path.parent, path.parent / "runs"
        first, second = (collect_boxes(root, fallback=runs) for _ in range(2))
        assert (second.boxes, second.spools, second.deaths) == (0, [], [])
        left = [each.name for each in root.iterdir() if each.name != runs.name]
        assert left in ([], [f"{_BOX}{CORRUPT}"], [_BOX], [f"{_BOX}{COLLECTED}"]), left
        assert not left if first.boxes else first.problems or not left  # without content it is removed
        for each in first.spools:
            for request in Spool(each).peek():
                assert request.signal in SIGNALS


def ledger(content: bytes) -> None:
    """A history is read as it was written, and its time can be added up; or StoredError is raised."""
    with suppress(StoredError):
        history = decode_history(content)
        whole = run_time(history)
        assert all(each >= 0 for each in whole.activities.values())
        assert decode_history(encode_history(history)).attempt.attempted == history.attempt.attempted


def values(content: bytes) -> None:
    """Values are read as they were written, or ValuesError is raised."""
    with suppress(ValuesError):
        written = encode_values(decode_values(content))
        assert written == encode_values(decode_values(written))


def run(content: bytes) -> None:
    """A folder with a spool, a ledger and values is compared with itself."""
    files = unpack_archive(content)
    stored = {name: files.pop(name) for name in (FILE, VALUES) if name in files}
    with _folder(files) as path:
        of_run = path.parent / LEDGERS / "run-x"
        of_run.mkdir(mode=0o700, parents=True)
        for name, each in stored.items():
            (of_run / name).write_bytes(each)
        _compared("compare", str(path.parent), str(path.parent), "--all")


def prometheus(content: bytes) -> None:
    """Answers of a Prometheus become a run, or an error."""
    answers = iter(content.split(b"\n"))
    asked = PrometheusApi.query
    PrometheusApi.query = lambda *_: _answered(next(answers, b""))  # type: ignore[method-assign]
    try:
        _compared("compare", "run-7", "run-7", "--prometheus", "http://127.0.0.1:9", "--all")
    finally:
        PrometheusApi.query = asked  # type: ignore[method-assign]


def _answered(content: bytes) -> list[Sample]:
    try:
        return samples(200, content)
    except (ValueError, QueryError) as error:
        raise SpoolError("not a Prometheus") from error


def _compared(*arguments: str) -> None:
    """Check what the command prints, as text and as JSON."""
    status, output, errors = _command(*arguments)
    assert (status == 0) == bool(output)
    assert all(each.isprintable() for each in (output + errors).replace("\n", ""))
    status, output, errors = _command(*arguments, "--json")
    assert (status == 0) == bool(output)
    for each in json.loads(output)["runs"] if output else ():
        assert each["duration_seconds"] is None or each["duration_seconds"] >= 0
        assert each["goodput"] is None or isinstance(each["goodput"], str) or math.isfinite(each["goodput"])


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(requests_of_a_segment, items_of_a_segment, journal, context_page, open_windows, spool, box),
        *(ledger, values, run, prometheus),
    )
}

#: Targets whose inputs are archives.
ARCHIVES = {"spool", "box", "run"}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Log nothing, as each damaged file is a warning; decode without pauses, and make the parser of commands once.

    A busy machine makes pauses long. The parser took a third of the time of an input.
    """
    logger, pause, make = logging.getLogger("monitel"), Pace.pause, parser.make_parser
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    Pace.pause = _ignore  # type: ignore[assignment,method-assign]
    parser.make_parser = cache(make)
    try:
        yield
    finally:
        logger.setLevel(level)
        Pace.pause = pause  # type: ignore[method-assign]
        parser.make_parser = make


def _ignore(*_arguments: object) -> None:
    """Do nothing."""


def _read(content: bytes, make: Callable[[int, Position], SegmentReader]) -> list[FrozenRequest]:
    """Return the requests of a segment. A reader that continues at a position reads the same ones."""
    descriptor = os.memfd_create("segment")
    try:
        os.write(descriptor, content)
        found, positions = [], [Position()]
        with suppress(NotRecognisedError), closing(make(os.dup(descriptor), Position())) as reader:
            while (request := reader.read(len(content))) is not None:
                found.append(request)
                positions.append(reader.position)
        assert len(set(positions)) == len(positions)
        assert sorted(positions) == positions
        for begin in range(1, min(len(found), _MOST)):
            with closing(make(os.dup(descriptor), positions[begin])) as reader:
                assert found[begin] == reader.read(len(content))
        return found
    finally:
        os.close(descriptor)


def _autopsy(path: Path) -> None:
    """Check what the command prints about a box."""
    for options in (["--all"], ["--json"]):
        status, output, errors = _command("autopsy", str(path), *options)
        assert "Traceback" not in errors
        assert (status == 0) == bool(output)
        assert all(each.isprintable() for each in (output + errors).replace("\n", ""))
        if output and options == ["--json"]:
            json.loads(output)


def _command(*arguments: str) -> tuple[int, str, str]:
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = main([*arguments])
    return status, output.getvalue(), errors.getvalue()


@contextmanager
def _folder(files: dict[str, bytes], name: str = "spool") -> Iterator[Path]:
    """Make a folder with files, and remove it."""
    root = _root() / f"{next(_numbers)}"
    path = root / name
    path.mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    for each, content in files.items():
        (path / each).write_bytes(content)
        (path / each).chmod(0o600)
    try:
        yield path
    finally:
        rmtree(root, ignore_errors=True)


_roots: list[TemporaryDirectory[str]] = []  # removed at the exit


def _root() -> Path:
    """Return a folder of this process, in memory if possible."""
    if not _roots:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        _roots.append(TemporaryDirectory(prefix="monitel-readers-", dir=memory, ignore_cleanup_errors=True))
    return Path(_roots[0].name)
