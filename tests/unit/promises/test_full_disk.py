"""A disk that is full, read-only or hangs: the job neither stops nor waits, and each item is delivered or counted."""

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest
from tests.support.checks import Warned, wait_until
from tests.support.commands import command
from tests.support.hostile import refusing_url
from tests.support.inbox import DEADLINE, Answer
from tests.support.pipelines import Start, check_accounts, emit, logs
from tests.support.producers import make_small, record_ranges
from tests.support.receiver import Receiver
from tests.support.spools import cat, files

import monitel
from monitel import COUNT, Stat
from monitel_otlp import Pipeline

PLENTY = 1 << 40
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """The file system below a folder, as the functions of ``os`` show it: with so many free bytes, or hanging."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.free = PLENTY  # bytes that can still be written
        self.error = errno.ENOSPC  # of a write that does not fit; EROFS: nothing can be written, made or removed
        self.back, self.hung = Event(), Event()  # calls hang until the disk is back; set when one hangs
        self.in_main_thread: list[str] = []
        self.back.set()
        self._folder = str(folder)
        for name in ("open", "mkdir", "unlink", "rmdir", "rename", "listdir", "pread", "pwrite", "write", "ftruncate"):
            monkeypatch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def hang(self) -> None:
        self.hung.clear()
        self.back.clear()

    def _call(self, name: str, real: Any, *arguments: Any, **options: Any) -> Any:
        if not self._is_below(arguments[0] if arguments else ".", options.get("dir_fd")):
            return real(*arguments, **options)
        if not self.back.is_set():
            if current_thread() is main_thread():
                self.in_main_thread.append(name)
            self.hung.set()
            assert self.back.wait(2 * DEADLINE)
        if name in {"write", "pwrite"}:
            return self._write(real, *arguments)
        read_only = self.free <= 0 and self.error == errno.EROFS
        if read_only and (name not in {"open", "listdir", "pread"} or (name == "open" and arguments[1] & WRITES)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(*arguments, **options)

    def _is_below(self, place: Any, folder: int | None) -> bool:
        if isinstance(place, int):
            path = Path(f"/proc/self/fd/{place}").resolve() if place > 2 else Path()
        else:
            path = (Path() if folder is None else Path(f"/proc/self/fd/{folder}").resolve()) / os.fspath(place)
        return str(path).startswith(self._folder)

    def _write(self, real: Any, descriptor: int, content: Any, *offset: int) -> int:
        possible = min(len(content), max(0, self.free))
        if possible < len(content) and (not possible or self.error != errno.ENOSPC):
            raise OSError(self.error, os.strerror(self.error))
        self.free -= possible
        return int(real(descriptor, content[:possible], *offset))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send at most 16 events in a request, and retry after milliseconds."""
    make_small(monkeypatch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Disk]:
    """The disk of the spool, which responds again at the end. The main thread must never use it."""
    disk = Disk(monkeypatch, tmp_path / "spool")
    yield disk
    disk.back.set()
    assert [] == disk.in_main_thread


def emit_many(pipeline: Pipeline, count: int, first: int = 0) -> list[str]:
    """Emit events of about 300 bytes, at most 16 in a request, and return their names."""
    names = [f"event {number}" for number in range(first, first + count)]
    for name in names:
        monitel.emit(name, text="x" * 200)
    pipeline.force_flush(0.0)
    return names


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_exit_with_a_full_disk_counts_what_is_lost(
    start: Start, disk: Disk, warned: Warned, capsys: pytest.CaptureFixture[str], error: int
) -> None:
    """Without backend and black box all is dropped as ``disk``; one warning has folder and reason; no file is left."""
    disk.free, disk.error = 0, error
    pipeline = start(endpoint=refusing_url(), spans=True, black_box=False)
    emit_many(pipeline, 5)
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    record_ranges("span")
    assert not pipeline.shutdown()
    assert {"metrics": (1, {"disk": 1}), "logs": (5, {"disk": 5}), "traces": (1, {"disk": 1})} == {
        signal: (each.recorded, dict(each.dropped)) for signal, each in pipeline.account().items()
    }
    assert "dropped 7 (disk 7)" in capsys.readouterr().err
    assert 1 == len(warned(f"{Path.cwd()}/spool", "cannot be used", os.strerror(error)))
    assert [] == files("spool")


@pytest.mark.parametrize("trouble", ["full", "hangs"])
def test_exit_leaves_in_the_box_what_the_disk_does_not_take(
    receiver: Receiver, start: Start, disk: Disk, trouble: str
) -> None:
    pipeline = start(endpoint=refusing_url())
    names = emit_many(pipeline, 40)
    disk.free = 0
    if trouble == "hangs":
        disk.hang()
    assert not pipeline.shutdown(0.5)
    account = logs(pipeline)
    assert (40, 40, 0) == (account.recorded, account.on_disk, account.lost)
    disk.free = PLENTY
    disk.back.set()
    assert account == logs(pipeline)
    if trouble == "full":  # a thread that hung keeps the folder until the process ends
        assert 0 == command("replay", "spool", "--endpoint", receiver.url).status
        assert names == receiver.record_names()
        assert [] == files("spool")


def test_exit_beside_a_disk_that_hangs_counts_what_is_lost(start: Start, disk: Disk) -> None:
    """Without backend and black box all is dropped as ``exit``."""
    pipeline = start(endpoint=None, black_box=False)
    disk.hang()
    emit_many(pipeline, 5)
    assert not pipeline.shutdown(0.5)
    assert {"exit": 5} == pipeline.dropped


@pytest.mark.parametrize("trouble", ["full", "hangs"])
def test_memory_is_limited_if_the_disk_takes_nothing(
    receiver: Receiver, start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The oldest items are dropped as ``queue_full`` at once; the newest are delivered when the backend is back."""
    make_small(monkeypatch, memory_bytes=20_000)
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    disk.free = 0
    if trouble == "hangs":
        disk.hang()
    pipeline = start(export_interval=0.02, black_box=False)
    names = emit_many(pipeline, 320)
    wait_until(lambda: logs(pipeline).waiting < 100, "dropped events")
    assert {"queue_full"} == set(logs(pipeline).dropped)
    receiver.forget_rules()
    assert not pipeline.force_flush(DEADLINE)
    account = logs(pipeline)
    assert 320 == account.delivered + account.dropped["queue_full"]
    assert account.delivered == len(receiver.record_names())
    older = [name for name in receiver.record_names() if name not in names[-account.delivered :]]
    assert len(older) <= 16  # of the request that was being sent; all others are the newest


def test_space_that_comes_back_is_used(receiver: Receiver, start: Start, disk: Disk, warned: Warned) -> None:
    """Until then items stay in memory, and writing is tried again; one warning is logged, and nothing is lost."""
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    disk.free = 0
    pipeline = start(export_interval=0.02)
    names = emit_many(pipeline, 40)
    wait_until(lambda: warned("cannot be used"), "a failed write")
    assert (40, 40) == (logs(pipeline).recorded, logs(pipeline).waiting)
    disk.free = PLENTY
    names += emit_many(pipeline, 40, 40)
    wait_until(lambda: logs(pipeline).on_disk, "a write that succeeds")
    assert not pipeline.shutdown()
    assert (80, 80) == (logs(pipeline).recorded, logs(pipeline).on_disk)
    assert names == cat("spool").names
    assert 1 == len(warned("cannot be used"))


def test_rejected_request_without_room_is_counted(receiver: Receiver, start: Start, disk: Disk, warned: Warned) -> None:
    """Its reason is logged, and the fault of the disk; later events are delivered."""
    receiver.rule(lambda request: Answer(400) if b"poison" in request.body else None)
    disk.free = 0
    pipeline = start()
    emit(pipeline, "first", "poison", "last")
    assert ["first", "last"] == receiver.record_names()
    assert (2, {"rejected": 1}) == (logs(pipeline).delivered, dict(logs(pipeline).dropped))
    assert (1, 1) == (len(warned("HTTP 400")), len(warned("cannot be used")))


def test_replay_from_a_full_disk_delivers_once(receiver: Receiver, start: Start, disk: Disk) -> None:
    with start(endpoint=None) as pipeline:
        names = emit_many(pipeline, 10)
    disk.free = 0
    assert 0 == command("replay", "spool", "--endpoint", receiver.url).status
    assert names == receiver.record_names()
    assert [] == files("spool")


def test_healthy_backend_needs_no_disk(
    receiver: Receiver, start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file system hangs, ``configure()``, flushes and the exit return, and everything is delivered."""
    make_small(monkeypatch, after_s=3600.0)  # on a busy machine an item may get old before it is sent
    disk.hang()
    pipeline = start()
    assert emit(pipeline, "first")
    monitel.emit("second")
    assert pipeline.shutdown(DEADLINE)
    assert not disk.back.is_set()
    assert (["first", "second"], 2) == (receiver.record_names(), logs(pipeline).delivered)


def test_flush_without_an_endpoint_waits_until_the_disk_has_the_items(start: Start, disk: Disk) -> None:
    """A disk that does not respond in time makes the flush return False."""
    disk.hang()
    pipeline = start(endpoint=None)
    assert not emit(pipeline, "event", seconds=0.2)
    assert (0, 1) == (logs(pipeline).on_disk, logs(pipeline).waiting)
    disk.back.set()
    assert pipeline.force_flush(DEADLINE)
    assert 1 == logs(pipeline).on_disk
    assert ["event"] == cat("spool").names


@pytest.mark.parametrize("begins", ["before a write", "after a write"])
def test_disk_that_hangs_stops_no_other_signal(receiver: Receiver, start: Start, disk: Disk, begins: str) -> None:
    """The backlog is delivered once, in order, when backend and disk are back."""
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    pipeline = start(export_interval=0.02, spans=True)
    if begins == "before a write":
        disk.hang()
    names = emit_many(pipeline, 32)
    if begins == "after a write":
        wait_until(lambda: logs(pipeline).on_disk == 32, "events on disk")
        disk.hang()
        receiver.forget_rules()
    wait_until(disk.hung.is_set, "a call that hangs")
    for number in range(1, 4):
        record_ranges("span")
        wait_until(lambda: pipeline.force_flush(0.0) or pipeline.account()["traces"].delivered == number)  # noqa: B023
    names += emit_many(pipeline, 3, 32)
    check_accounts(pipeline)
    assert not disk.back.is_set()
    disk.back.set()
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert names == receiver.record_names()
    assert (35, 0) == (logs(pipeline).delivered, logs(pipeline).on_disk)
