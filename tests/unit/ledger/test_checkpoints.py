"""Checkpoints: one activity and one event for each, whichever layers save or load it."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from importlib import import_module
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def checkpoints(monitel: ModuleType) -> ModuleType:
    """Return the module under test."""
    assert monitel
    return import_module("monitel.checkpoints")


def total(monitel: ModuleType, name: str) -> float:
    """Return the seconds of an activity; all of them add up."""
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    return float(book.activities.get(name, 0) / 1e9)


def wait() -> None:
    """Let at least 20 ms pass."""
    Event().wait(0.02)


def test_event_has_step_duration_size_and_path(
    monitel: ModuleType, checkpoints: ModuleType, events: list[Any], tmp_path: Path
) -> None:
    """The duration is that of the activity, and the step the one at which saving began."""
    monitel.set_step(7)
    before = total(monitel, "step")
    path = tmp_path / "last.pt"
    with checkpoints.Checkpoint(checkpoints.SAVE, path) as checkpoint:
        wait()
        path.write_bytes(b"x" * 1234)
        monitel.set_step(8)
    (event,) = events
    assert ("checkpoint.saved", monitel.Severity.INFO, 7) == (event.name, event.severity, event.step)
    assert {"checkpoint.path", "checkpoint.duration", "checkpoint.size"} == {*event.data}
    assert (str(path), 1234) == (event.data["checkpoint.path"], event.data["checkpoint.size"])
    assert checkpoint.seconds == event.data["checkpoint.duration"] >= 0.02
    assert pytest.approx(checkpoint.seconds, abs=0.1) == total(monitel, "checkpoint.save")
    assert total(monitel, "step") >= before


def test_checkpoint_within_another_is_part_of_it(
    monitel: ModuleType, checkpoints: ModuleType, events: list[Any]
) -> None:
    """Only the outermost has an event, even if it has none itself; the next one has its own."""
    save, load = checkpoints.SAVE, checkpoints.LOAD
    with (
        checkpoints.Checkpoint(save, "outer"),
        checkpoints.Checkpoint(save, "middle"),
        checkpoints.Checkpoint(load, "inner"),
    ):
        wait()
    assert total(monitel, "checkpoint.load") >= 0.02 > total(monitel, "checkpoint.save")
    with checkpoints.Checkpoint(save, "silent", logs=False), checkpoints.Checkpoint(save, "inner"):
        pass
    with checkpoints.Checkpoint(load, "next"):
        pass
    assert [("checkpoint.saved", "outer"), ("checkpoint.loaded", "next")] == [
        (event.name, event.data["checkpoint.path"]) for event in events
    ]


def test_failures_propagate(monitel: ModuleType, checkpoints: ModuleType, events: list[Any]) -> None:
    """A save that fails is an error, without secrets; a load that fails is not, and neither is an interrupt."""
    error = OSError(28, "No space left for https://me:hidden@host")
    with pytest.raises(OSError, match="No space") as raised, checkpoints.Checkpoint(checkpoints.SAVE, "full"):
        raise error
    assert raised.value is error
    for activity, other in ((checkpoints.LOAD, FileNotFoundError()), (checkpoints.SAVE, KeyboardInterrupt())):
        with pytest.raises(type(other)), checkpoints.Checkpoint(activity, "path"):
            raise other
    (event,) = events
    assert ("checkpoint.failed", monitel.Severity.ERROR) == (event.name, event.severity)
    assert "OSError" == event.data["exception.type"]
    assert "hidden" not in event.data["exception.message"]
    assert monitel.ledger().current not in {"checkpoint.save", "checkpoint.load"}
    with checkpoints.Checkpoint(checkpoints.SAVE, "next"):
        pass
    assert "next" == events[-1].data["checkpoint.path"]


class Unprintable:
    """A path that raises."""

    def __fspath__(self) -> str:
        raise RuntimeError("no path")


os.PathLike.register(Unprintable)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"bytes", "bytes"),
        ("s3://me:hidden@bucket/last?token=hidden", "s3://***@bucket/last?token=***"),
        ("bad\udcff", "bad\\udcff"),
        ("x" * 5000, "x" * 1000),
        (io.BytesIO(), None),
        (Unprintable(), None),
        (None, None),
        (3, None),
        ("nul\0", "nul\0"),
        (os.devnull, os.devnull),
    ],
)
def test_path_is_shown_if_there_is_one(
    checkpoints: ModuleType, events: list[Any], path: object, shown: str | None
) -> None:
    """Without secrets, as text that UTF-8 can hold, and of limited length. None of these has a size."""
    with checkpoints.Checkpoint(checkpoints.SAVE, path):
        pass
    assert ([] if shown is None else [shown]) == [event.data["checkpoint.path"] for event in events]
    assert not [event for event in events if "checkpoint.size" in event.data]


def test_open_file(checkpoints: ModuleType, events: list[Any], tmp_path: Path) -> None:
    """The size includes what is still in the file's buffer; of a load it is that of the whole file."""
    with (tmp_path / "file.pt").open("wb") as file, checkpoints.Checkpoint(checkpoints.SAVE, file):
        file.write(b"x" * 100)
    with (tmp_path / "file.pt").open("rb") as again, checkpoints.Checkpoint(checkpoints.LOAD, again):
        again.read(10)
    assert [(str(tmp_path / "file.pt"), 100)] * 2 == [
        (event.data["checkpoint.path"], event.data["checkpoint.size"]) for event in events
    ]


def test_size_of_folder(
    checkpoints: ModuleType, events: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files of this save count, and no linked folder; all files of a load count, unless there are too many."""
    monkeypatch.setattr(checkpoints, "_MAX_SIZE_NS", 60 * 10**9)
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "weights").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "earlier" / "weights", (1, 1))
    with checkpoints.Checkpoint(checkpoints.SAVE, tmp_path, others="checkpoint-"):
        (tmp_path / "checkpoint-7").mkdir()
        (tmp_path / "checkpoint-7" / "weights").write_bytes(b"x" * 5000)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "weights").write_bytes(b"x" * 20)
        (tmp_path / "state").write_bytes(b"x" * 3)
        (tmp_path / "new" / "again").symlink_to(tmp_path)
    with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
        pass
    monkeypatch.setattr(checkpoints, "_MAX_FILES", 3)
    with checkpoints.Checkpoint(checkpoints.LOAD, tmp_path):
        pass
    assert [23, 6023, None] == [event.data.get("checkpoint.size") for event in events]


def test_checkpoint_in_the_background(checkpoints: ModuleType, events: list[Any]) -> None:
    """The event of a deferred checkpoint comes at its end, once, with the time for which it has blocked."""
    with checkpoints.Checkpoint(checkpoints.SAVE, "async"), checkpoints.Checkpoint(checkpoints.SAVE, "inner") as inner:
        end = inner.defer()
    assert [] == events
    wait()
    writer = Thread(target=end, args=(None,))
    writer.start()
    writer.join()
    assert not end(None)
    (event,) = events
    assert "async" == event.data["checkpoint.path"]
    assert event.data["checkpoint.duration"] >= 0.02 > event.data["checkpoint.blocked"] > 0

    def fail() -> None:
        nonlocal end
        with checkpoints.Checkpoint(checkpoints.SAVE, "async") as outer:
            end = outer.defer()
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert not end(None)
    assert ["checkpoint.saved", "checkpoint.failed"] == [event.name for event in events]


def test_parts_of_a_load(monitel: ModuleType, checkpoints: ModuleType, events: list[Any]) -> None:
    """The event has the time of all parts, and what is between them does not count."""
    load = checkpoints.Checkpoint(checkpoints.LOAD, "parts", logs=False)
    for _ in range(2):
        with load:
            wait()
        monitel.set_step(5)
        wait()
    load.step = 3
    load.log()
    (event,) = events
    assert 3 == event.step
    assert load.seconds == event.data["checkpoint.duration"] >= 0.04
    assert pytest.approx(load.seconds, abs=0.1) == total(monitel, "checkpoint.load")


def test_each_thread_has_its_own_checkpoints(checkpoints: ModuleType, events: list[Any]) -> None:
    """A save in another thread is not part of the one in this thread."""

    def save() -> None:
        with checkpoints.Checkpoint(checkpoints.SAVE, "background"):
            pass

    with checkpoints.Checkpoint(checkpoints.SAVE, "here"):
        thread = Thread(target=save)
        thread.start()
        thread.join()
    assert ["background", "here"] == [event.data["checkpoint.path"] for event in events]


def test_failing_handler_is_logged_once(
    monitel: ModuleType, checkpoints: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save goes on."""

    def fail(_event: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(checkpoints, "_warned", False)
    with monitel.register_event_handler(fail), caplog.at_level(logging.WARNING, "monitel"):
        for _ in range(2):
            with checkpoints.Checkpoint(checkpoints.SAVE, "path"):
                pass
    assert ["the event of a checkpoint failed (further failures are not logged)"] == [
        record.getMessage() for record in caplog.records
    ]


FORKED = """
import os, sys
import monitel
from monitel.checkpoints import SAVE, Checkpoint

monitel.register_event_handler(lambda event: print(os.getpid() != parent, event.data["checkpoint.path"], flush=True))
parent = os.getpid()
with Checkpoint(SAVE, "parent"):
    if os.fork() == 0:
        with Checkpoint(SAVE, "child"):
            pass
        os._exit(0)
    os.wait()
"""


def test_fork_within_a_checkpoint() -> None:
    """The child's checkpoints are not part of the parent's."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert ["True child", "False parent"] == done.stdout.splitlines()
