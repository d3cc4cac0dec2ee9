"""When points are written, on disks that hang or fail too: no caller waits, and each loss is counted."""

import datetime as dt
import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader  # type: ignore[import-untyped]
from tests.support.checks import wait_until
from tests.unit.tensorboard.files import read

import monitel
from monitel_tensorboard import SummaryWriter, install
from monitel_tensorboard.event_file import EventFile

FULL = OSError(28, "No space left on device")


class Disk:
    """A disk that can hang and fail, and that records the number of points of each write."""

    def __init__(self) -> None:
        self.works = Signal()
        self.works.set()
        self.error: OSError | None = None
        self.slices: list[int] = []
        self.real_append = EventFile.append

    def append(self, file: EventFile, points: list[Any]) -> None:
        """Call ``EventFile.append``, unless the test makes the disk hang or fail."""
        self.slices.append(len(points))
        assert self.works.wait(60)
        if self.error is not None:
            raise self.error
        self.real_append(file, points)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(EventFile, "append", lambda file, points: disk.append(file, points))  # noqa: PLW0108
    yield disk
    disk.works.set()


def test_hanging_disk_does_not_block_callers(tmp_path: Path, disk: Disk) -> None:
    """Points are accepted while the disk hangs (EventFileWriter blocks after 10), and written when it works again."""
    disk.works.clear()
    with SummaryWriter(tmp_path) as writer:
        for step in range(1000):
            writer.add_scalar("loss", step, step)
        assert not writer.flush(timeout=0.01)
        disk.works.set()
        assert writer.flush(60)
    assert [(step, step) for step in range(1000)] == read(tmp_path)["loss"]
    assert max(disk.slices) <= 32


def test_close_on_a_hanging_disk_is_bounded(tmp_path: Path, disk: Disk) -> None:
    """close() and flush() end within their timeout and count what is left; a second close() does not wait again."""
    disk.works.clear()
    writer = SummaryWriter(tmp_path)
    writer.add_scalar("loss", 1)
    assert (False, False) == (writer.flush(timeout=0.05), writer.close(timeout=0.05))
    assert (True, False) == (writer.close(timeout=600), writer.flush(timeout=600))
    assert 1 == writer.dropped


def test_failing_disk_is_not_retried_for_each_point(tmp_path: Path, disk: Disk) -> None:
    """Even if each point is written at once while the disk works."""
    disk.error = FULL
    with SummaryWriter(tmp_path, max_queue=1, flush_secs=3600) as writer:
        for step in range(100):
            writer.add_scalar("loss", step, step)
            if step == 50:
                wait_until(lambda: disk.slices[-1:] > [0] and writer.failed == len(disk.slices))
        assert writer.failed <= 3  # the empty file, and a slice
        disk.error = None
        assert writer.flush(60)
    assert 100 == len(read(tmp_path)["loss"])


def test_deleted_folder_is_created_again(tmp_path: Path) -> None:
    """Points that are added after the folder was deleted are in a new, readable file."""
    with SummaryWriter(tmp_path / "run") as writer:
        writer.add_scalar("loss", 1, 1)
        assert writer.flush(60)
        shutil.rmtree(tmp_path / "run")
        writer.add_scalar("loss", 2, 2)
    assert {"loss": [(2, 2)]} == read(tmp_path / "run")
    (path,) = (tmp_path / "run").iterdir()
    assert "brain.Event:2" == next(LegacyEventFileLoader(str(path)).Load()).file_version


def test_close_writes_if_no_thread_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at exit from Python 3.12 on: points are written by close()."""
    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("at shutdown")))
        writer = SummaryWriter(tmp_path)
        for step in range(100):
            writer.add_scalar("loss", step, step)
        assert writer.close()
    assert {"loss": [(step, step) for step in range(100)]} == read(tmp_path)


def test_item_that_no_point_can_hold_is_dropped_and_counted(tmp_path: Path) -> None:
    """No error is raised; the other items of the event are written."""
    numbers = monitel.LoggedNumbers({"good": 1})
    odd: dict[str, Any] = {"list": [1], "none": None, "huge": 10**400}
    numbers.data.update(odd)
    event = monitel.Event("odd", dt.datetime(2026, 1, 1), {"good": 1})  # noqa: DTZ001  local time
    event.data.update({"list": [1], "none": None, "object": ...})  # type: ignore[dict-item]  # on purpose
    with install(tmp_path) as installed:
        monitel.log_event(numbers)
        monitel.log_event(event)
        monitel.emit("never", timestamp=dt.datetime.min, n=1)  # noqa: DTZ901  local time
        monitel.log({"after": 1.0})
    text = '| odd | INFO |\n|---|---|\n| good | 1 |\n| list | [1] |\n| none | null |\n| object | "Ellipsis" |'
    assert {"good": [(0, 1)], "after": [(0, 1)], "events/odd": [(0, text)]} == read(tmp_path)
    assert 4 == installed.writer.dropped


def test_ledger_has_real_steps_and_its_seconds_only_rise(tmp_path: Path) -> None:
    """Even if steps go back. Nothing is written before a step."""
    with install(tmp_path) as installed:
        with monitel.activity("evaluation"):
            monitel.flush()
        assert installed.writer.flush(60)
        assert {} == read(tmp_path, ledger=True)
        monitel.set_step(10)
        assert installed.writer.flush(60)
        monitel.set_step(4)
    found = read(tmp_path, ledger=True)
    points, goodput = found["training.time/step"], found["training.goodput"]
    assert [10, 4] == [step for step, _ in points] == [step for step, _ in goodput]
    assert all(0 < float(share) < 1 for _, share in goodput)
    assert all(one <= two for (_, one), (_, two) in pairwise(points))  # type: ignore[operator]  # numbers
