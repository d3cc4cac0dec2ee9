"""SummaryWriter: added points can be read back, disk errors lose none, and no caller waits for the disk."""

from __future__ import annotations

import logging
import math
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import (  # type: ignore[import-untyped]
    LegacyEventFileLoader,
)

import monitel_tensorboard
from monitel.attributes import escape_surrogates
from monitel_tensorboard import SummaryWriter
from monitel_tensorboard.event_file import EventFile
from monitel_tensorboard.point import Point

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Read: TypeAlias = Callable[[Path], dict[str, list[tuple[int, float | str]]]]
    Eventually: TypeAlias = Callable[[Callable[[], bool]], None]

FULL = OSError(28, "No space left on device")
_ANY_TEXT = st.text(st.characters(exclude_categories=()))  # including lone surrogates


def test_public_names() -> None:
    """The package offers these names and no others."""
    assert monitel_tensorboard.__all__ == ["Installation", "SummaryWriter", "install"]


def test_imports_neither_torch_nor_tensorflow(run_script: Callable[..., str]) -> None:
    """Writing and reading only needs tensorboard."""
    script = """
import sys, tempfile, monitel_tensorboard
with monitel_tensorboard.SummaryWriter(tempfile.mkdtemp()) as writer:
    writer.add_scalar("loss", 0.5)
    writer.add_text("note", "text")
print({"torch", "tensorflow"} & set(sys.modules))
"""
    assert run_script(script) == "set()\n"


def test_scalars_and_texts_are_read_back(tmp_path: Path, read: Read) -> None:
    """TensorBoard's reader finds each point, in order, with its step; no step is step 0."""
    with SummaryWriter(tmp_path) as writer:
        for step in range(300):
            writer.add_scalar("loss", step / 2, step)
        writer.add_scalar("flag", True)
        writer.add_text("note", "**bold**", 7)
    assert read(tmp_path) == {
        "loss": [(step, step / 2) for step in range(300)],
        "flag": [(0, 1.0)],
        "note": [(7, "**bold**")],
    }
    assert (writer.dropped, writer.failed) == (0, 0)


def test_format_of_the_file(tmp_path: Path) -> None:
    """The file has TensorBoard's name pattern, the version as the first record, and the given times."""
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1, 2, walltime=1234.5)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    version, loss = LegacyEventFileLoader(str(path)).Load()
    assert version.file_version == "brain.Event:2"
    assert (loss.wall_time, loss.step, loss.summary.value[0].tag) == (1234.5, 2, "loss")


@example([Point("\ud800", "\ud800", 0, 0.0)])
@given(
    st.lists(
        st.builds(
            Point,
            _ANY_TEXT,
            st.floats(width=32) | _ANY_TEXT,
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
        ),
        max_size=5,
    )
)
def test_any_point_can_be_encoded(tmp_path_factory: pytest.TempPathFactory, points: list[Point]) -> None:
    """Any valid point can be written and read back; lone surrogates become their escapes."""
    file = EventFile(str(tmp_path_factory.mktemp("any")))
    file.append(points)
    records = list(LegacyEventFileLoader(str(file._path)).Load())[1:]
    assert [record.step for record in records] == [point.step for point in points]
    for record, point in zip(records, points, strict=True):
        value = record.summary.value[0]
        assert value.tag == escape_surrogates(point.tag)
        if isinstance(point.value, str):
            assert value.tensor.string_val[0] == escape_surrogates(point.value).encode()
        else:
            assert isinstance(point.value, float)
            assert value.simple_value == point.value or math.isnan(point.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, 0.5), TypeError, "tag must be a str such as 'loss/train', got int: 1"),
        (("loss", "0.5"), TypeError, "value must be a real number, got str: '0.5'; use add_text for text"),
        (("loss", None), TypeError, "value must be a real number that fits in a float, got NoneType: None"),
        (("loss", 1j), TypeError, "value must be a real number that fits in a float, got complex: 1j"),
        (("loss", 10**400), TypeError, "value must be a real number that fits in a float, got int: 1000"),
        (("loss", 1, 1.5), TypeError, "global_step must be an int or None, got float: 1.5"),
        (("loss", 1, 2**63), ValueError, "global_step must fit in 64 bits, got 9223372036854775808"),
        (("loss", 1, 0, "now"), TypeError, "walltime (seconds since the Unix epoch) must be a real number"),
    ],
)
def test_wrong_points(tmp_path: Path, arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """The error names the wrong and the allowed values, where the point is added."""
    with SummaryWriter(tmp_path) as writer, pytest.raises(error) as raised:
        writer.add_scalar(*arguments)
    assert str(raised.value).startswith(message)


def test_text_must_be_text(tmp_path: Path) -> None:
    """A number is not text."""
    with SummaryWriter(tmp_path) as writer, pytest.raises(TypeError, match="use add_scalar for a number"):
        writer.add_text("note", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_dir", "options", "error", "message"),
    [
        (3, {}, TypeError, "log_dir must be a str or a path, got int: 3"),
        ("s3://bucket/run", {}, ValueError, "log_dir must be a local folder, got 's3://bucket/run'; mount it"),
        (".", {"max_queue": 0}, ValueError, "max_queue must be at least 1, got 0"),
        (".", {"max_queue": 1.5}, TypeError, "max_queue must be an int, got float: 1.5"),
        (".", {"flush_secs": 0}, ValueError, "flush_secs must be more than 0 and at most 86400 seconds, got 0"),
        (".", {"flush_secs": math.inf}, ValueError, "flush_secs must be more than 0 and at most 86400 seconds"),
        (".", {"flush_secs": "1"}, TypeError, "flush_secs must be a number of seconds, got str: '1'"),
    ],
)
def test_wrong_arguments(log_dir: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Wrong arguments are errors at construction, and nothing is written."""
    with pytest.raises(error) as raised:
        SummaryWriter(log_dir, **options)
    assert str(raised.value).startswith(message)


def test_hanging_disk_does_not_block_callers(tmp_path: Path, disk: Any, read: Read) -> None:
    """Points are accepted while the disk hangs (EventFileWriter blocks after 10), and written when it works again."""
    disk.works.clear()
    with SummaryWriter(tmp_path) as writer:
        for step in range(1000):
            writer.add_scalar("loss", step, step)
        assert not writer.flush(timeout=0.01)
        disk.works.set()
        assert writer.flush()
        assert read(tmp_path)["loss"] == [(step, step) for step in range(1000)]
    assert max(disk.slices) <= 32


def test_full_queue_drops_the_oldest_points(tmp_path: Path, disk: Any, read: Read, eventually: Eventually) -> None:
    """Dropped points are counted; points that are being written are kept."""
    disk.works.clear()
    with SummaryWriter(tmp_path, max_queue=10) as writer:
        eventually(lambda: disk.slices == [0])  # the thread hangs in the first record of the empty file
        for step in range(25):
            writer.add_scalar("loss", step, step)
        assert writer.dropped == 15
        disk.works.set()
    assert read(tmp_path)["loss"] == [(step, step) for step in range(15, 25)]
    assert writer.dropped == 15


def test_half_full_queue_wakes_the_thread(tmp_path: Path, eventually: Eventually) -> None:
    """Many points in a short time are written before the interval ends, not dropped."""
    with SummaryWriter(tmp_path, max_queue=10, flush_secs=3600) as writer:
        eventually(lambda: bool(writer._changed._waiters))  # type: ignore[attr-defined]
        for step in range(5):
            writer.add_scalar("loss", step, step)
        eventually(lambda: not writer._queue)
        assert writer.dropped == 0


def test_idle_writer_does_not_access_the_disk(tmp_path: Path, disk: Any) -> None:
    """The first round creates the file; without points, further rounds do not access it."""
    with SummaryWriter(tmp_path) as writer:
        assert writer.flush()
    assert writer._write_slice()
    assert disk.slices == [0]


def test_close_writes_if_no_thread_can_start(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can start, as at exit from Python 3.12 on, points are written by close()."""
    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("at shutdown")))
        writer = SummaryWriter(tmp_path)
        for step in range(100):
            writer.add_scalar("loss", step, step)
        assert writer.close()
    assert read(tmp_path) == {"loss": [(step, step) for step in range(100)]}


def test_points_are_written_without_a_flush(tmp_path: Path, read: Read, eventually: Eventually) -> None:
    """A point can be read soon after it was added."""
    with SummaryWriter(tmp_path, flush_secs=0.01) as writer:
        writer.add_scalar("loss", 1)
        eventually(lambda: "loss" in read(tmp_path))


def test_failing_disk_is_retried(
    tmp_path: Path, disk: Any, read: Read, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors are counted and logged once; no point is lost if the disk works again."""
    disk.error = FULL
    with SummaryWriter(tmp_path, flush_secs=0.01) as writer:
        writer.add_scalar("loss", 1, 1)
        eventually(lambda: writer.failed >= 3)
        disk.error = None
        writer.add_scalar("loss", 2, 2)
        assert writer.flush()
    assert read(tmp_path) == {"loss": [(1, 1), (2, 2)]}
    assert writer.dropped == 0
    (output,) = [record for record in caplog.records if record.name == "monitel_tensorboard"]
    assert output.levelno == logging.WARNING
    assert f"cannot write to {tmp_path}: {FULL!r}" in output.getMessage()


def test_close_on_a_failing_disk_counts_lost_points(
    tmp_path: Path, disk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """close() tries once more and then logs the number of lost points."""
    disk.error = FULL
    writer = SummaryWriter(tmp_path)
    for step in range(100):
        writer.add_scalar("loss", step, step)
    assert not writer.close()
    assert writer.dropped == 100
    assert f"100 points for {tmp_path} were dropped, 100 of them by close()" in caplog.text


def test_close_on_a_hanging_disk_is_bounded(tmp_path: Path, disk: Any) -> None:
    """close() and flush() end within their timeout; a second close() does not wait again."""
    disk.works.clear()
    writer = SummaryWriter(tmp_path)
    writer.add_scalar("loss", 1)
    start = time.monotonic()
    assert not writer.flush(timeout=0.05)
    assert not writer.close(timeout=0.05)
    assert writer.close(timeout=60)
    assert not writer.flush(timeout=60)
    assert time.monotonic() - start < 10
    assert writer.dropped == 1


def test_folder_that_cannot_be_created(
    tmp_path: Path, read: Read, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning is logged; when the folder can be created, all points are written."""
    obstacle = tmp_path / "runs"
    obstacle.write_text("a file where a folder should be")
    with SummaryWriter(obstacle / "first", flush_secs=0.01) as writer:
        writer.add_scalar("loss", 1, 1)
        eventually(lambda: writer.failed >= 2)
        assert caplog.text.count("cannot write to") == 1
        obstacle.unlink()
        assert writer.flush()
    assert read(obstacle / "first") == {"loss": [(1, 1)]}


def test_relative_folder(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the working directory does not move the folder."""
    monkeypatch.chdir(tmp_path)
    with SummaryWriter("run") as writer:
        writer.add_scalar("loss", 1, 1)
        assert writer.flush()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        writer.add_scalar("loss", 2, 2)
    assert read(tmp_path / "run") == {"loss": [(1, 1), (2, 2)]}


def test_deleted_folder_is_created_again(tmp_path: Path, read: Read) -> None:
    """Points that are added after the folder was deleted are in a new, readable file."""
    with SummaryWriter(tmp_path / "run") as writer:
        writer.add_scalar("loss", 1, 1)
        assert writer.flush()
        shutil.rmtree(tmp_path / "run")
        writer.add_scalar("loss", 2, 2)
    assert read(tmp_path / "run") == {"loss": [(2, 2)]}
    (path,) = (tmp_path / "run").iterdir()
    assert next(LegacyEventFileLoader(str(path)).Load()).file_version == "brain.Event:2"


def test_incomplete_record_is_removed(tmp_path: Path, read: Read, run_script: Callable[..., str]) -> None:
    """After a partial write (with RLIMIT_FSIZE) the file can be read, and is continued."""
    script = """
import resource, sys, threading
from monitel_tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=0.01)
assert writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for step in range(10):
    writer.add_scalar("loss", step, step)
pause = threading.Event()
while writer.failed < 2:
    pause.wait(0.005)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(writer.close(), writer.dropped)
"""
    assert run_script(script, tmp_path).startswith("True 0\n")
    assert len(list(tmp_path.iterdir())) == 1
    assert read(tmp_path) == {"loss": [(step, step) for step in range(10)]}


def test_incomplete_record_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    """If an incomplete record cannot be removed, the points continue in another file."""
    file = EventFile(str(tmp_path))
    file.append([Point("loss", 1.0, 1, 1.0)])
    with monkeypatch.context() as broken:
        broken.setattr("monitel_tensorboard.event_file._records", lambda *_, **__: [b"torn", None])
        broken.setattr("os.truncate", lambda *_: (_ for _ in ()).throw(FULL))
        with pytest.raises(TypeError):
            file.append([])
    file.append([Point("loss", 2.0, 2, 2.0)])
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_points_after_close_are_counted(tmp_path: Path, read: Read) -> None:
    """Points after close() raise no error, so that a late event does not break a job."""
    writer = SummaryWriter(tmp_path)
    writer.add_scalar("loss", 1, 1)
    assert writer.close()
    writer.add_scalar("loss", 2, 2)
    assert writer.close()
    assert writer.flush()
    assert writer.dropped == 1
    assert read(tmp_path) == {"loss": [(1, 1)]}


def test_threads_lose_no_points(tmp_path: Path, read: Read) -> None:
    """All points of several threads are written, those of each thread in order."""

    def add(tag: str) -> None:
        for step in range(500):
            writer.add_scalar(tag, step, step)

    with SummaryWriter(tmp_path) as writer:
        threads = [threading.Thread(target=add, args=(f"thread{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert read(tmp_path) == {f"thread{n}": [(step, step) for step in range(500)] for n in range(4)}


def test_signal_handler_may_add_a_point(tmp_path: Path, read: Read) -> None:
    """The lock is re-entrant: a signal handler that runs while it is held does not hang."""
    with SummaryWriter(tmp_path) as writer:
        before = signal.signal(signal.SIGUSR1, lambda *_: writer.add_scalar("signal", 1))
        try:
            with writer._changed:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert read(tmp_path) == {"signal": [(0, 1)]}


def test_repr(tmp_path: Path) -> None:
    """The repr shows folder, state and losses."""
    writer = SummaryWriter(tmp_path)
    writer.close()
    assert repr(writer) == f"<SummaryWriter {str(tmp_path)!r}, closed, 0 dropped>"
