"""The record of this process with known content, in a box with journals, and its copy as that of a killed process."""

import marshal
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel.blackbox.box import Box
from monitel.blackbox.folder import Folder
from monitel.blackbox.forms import NUMBER, STAT, Definition, LogRecord
from monitel.blackbox.reading import Record, read_record
from monitel.blackbox.record import EVENT, NAMES, NUMBERS, WINDOW, Names, read_names
from monitel.stats.window import OpenWindow, encode
from monitel_otlp.messages.attributes import key_values
from monitel_otlp.metrics.totals import WindowMapping

SECOND = 10**9
START = 1_767_323_045 * SECOND
ATTRIBUTES: dict[str, str | int] = {
    "service.name": "llm",
    "training.run.id": "run-7",
    "training.rank": 2,
    "training.world_size": 4,
}
DOING = {
    "step": 1199,
    "first_step": 1,
    "waits": [("all_reduce", 7, 41.0)],
    "ranges": [("forward", 5.0)],
    "activity": ("data", 3.0),
    "thread": 7,
    "stage": ("forward", True, 2.0, 7),
    "goodput": 0.75,
}
#: Of a process that has not existed since the machine was started.
KILLED = "20260102T030405-4194399-5-abcdef"


def definition(name: str, kind: str = STAT, **attributes: Any) -> Definition:
    suffixes = ("mean", "sum", "count") if kind == STAT else ()
    return Definition(kind, name, name, "s", "", False, attributes, suffixes)


def window(serial: int, number: int, *samples: float, at_s: int = 0) -> OpenWindow:
    begin_ns = START + at_s * SECOND
    fields = begin_ns, begin_ns + 10 * SECOND, len(samples), sum(samples), min(samples), max(samples), samples[-1]
    return OpenWindow(serial, number, False, begin_ns, *fields, 0, 1, 2, None, None)


class Recorded:
    """A box that is written by hand, without threads; ``open`` has the open windows, with the series of each."""

    def __init__(self, root: Path, spool: Path | None = None, **identity: Any) -> None:
        message = ResourceMetrics()
        message.resource.attributes.extend(key_values(ATTRIBUTES))
        mapping = tuple(WindowMapping(False, START, "percentiles"))
        usual = {"resource": message.SerializeToString(), "attributes": ATTRIBUTES, "mapping": mapping}
        self.box = Box(spool, root, {**usual, "run": "", "off": [], **identity}, interval_s=0.02)
        self.box.open()
        assert self.box.folder is not None
        self.path = self.box.folder.path
        self.open: list[tuple[Definition, OpenWindow]] = []
        self.box.open_windows = lambda: [(self.number(series), encode(each)) for series, each in self.open]
        self.box.sources["doing"] = lambda: DOING
        self.box.sources["counters"] = lambda: [
            ("training.time", {"training.activity": "step"}, 80.0),
            ("training.samples", {}, 9592),
            ("training.steps", {}, 300),
        ]

    @property
    def spools(self) -> Path:
        assert self.box.spool_root is not None
        return self.box.spool_root

    def number(self, series: Definition) -> int:
        return self.box.names.define([(repr(series), tuple(series))])[0]

    def close(self, series: Definition, closed: OpenWindow) -> None:
        self._append("metrics", WINDOW, (self.number(series), encode(closed._replace(closed=True))))

    def log(self, name: str, value: float, at_s: int = 0) -> None:
        series = self.number(definition(name, NUMBER))
        self._append("metrics", NUMBERS, [(series, START + at_s * SECOND, value)])
        self.event("run.log", at_s, body={name: value})
        self.box.sources["numbers"] = lambda: [(series, START + at_s * SECOND, value)]

    def event(self, name: str, at_s: int = 0, body: Any = None, **data: Any) -> None:
        time_ns = START + at_s * SECOND
        record = tuple(LogRecord(time_ns, time_ns, 9, name, None, data, body))
        self._append("logs", EVENT, record)
        if name != "run.log":
            self.box.sources["event"] = lambda: marshal.dumps(record, 2)

    def _append(self, journal: str, kind: int, value: Any) -> None:
        self.box.journals[journal].append(kind, marshal.dumps(value, 2))

    def settle(self, journal: str) -> None:
        found = self.box.journals[journal]
        found.read()
        found.settle(found.next - 1, found.next - 1)
        self.box.note_position()

    def killed(self, **identity: Any) -> Path:
        """Return a copy that is the box of a process that has ended without a shutdown; copy its spool folder, too."""
        assert self.box.folder is not None
        for folder in filter(None, (self.box.disk, self.box.folder)):
            path = folder.path.with_name(KILLED)
            shutil.copytree(folder.path, path)
            (path / NAMES).unlink()
            copied = Folder.open(path)
            (own, *others), _ = read_names(folder)
            names = Names({**own, **identity, "pid": 4194399, "start": "5", "name": KILLED})
            names.define(enumerate(others))
            names.copy(copied)
            copied.close()
        return self.path.with_name(KILLED)


def record_in(path: Path) -> Record:
    with closing(Folder.open(path)) as folder:
        return read_record(folder)


@contextmanager
def recorded(root: Path, spool: Path | None = None, **identity: Any) -> Iterator[Recorded]:
    found = Recorded(root, spool, **identity)
    try:
        yield found
    finally:
        found.box.close(1.0)
        with suppress(FileNotFoundError):
            shutil.rmtree(root)
