"""Trace files: written atomically, repeatedly, in bounded memory, with progress."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.profiler.traces import exported, read, slices, validated

from monitel.profiler import profile, record_function, schedule, tensorboard_trace_handler
from monitel.profiler.trace import chrome_trace, progress, recording

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.testing import ManualClock

MANY = 1_000_000


def test_repeated_export(tmp_path: Path) -> None:
    """A trace can be written repeatedly, even while the profile is running; torch writes it once."""
    with profile() as prof:
        with record_function("a"):
            pass
        assert ["a"] == [event["name"] for event in slices(exported(prof, tmp_path))]
    first = exported(prof, tmp_path)
    assert first == exported(prof, tmp_path)
    prof.export_chrome_trace(str(tmp_path / "python.json"), use_python_export=True)
    assert slices(first) == slices(read(tmp_path / "python.json"))


def test_compressed_file(tmp_path: Path) -> None:
    """A file whose name ends with .gz is compressed."""
    with profile() as prof, record_function("a"):
        pass
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    assert ["a"] == [event["name"] for event in slices(validated(read(tmp_path / "trace.json.gz")))]


def test_missing_folder(tmp_path: Path) -> None:
    """A missing folder is an error that names it; torch loses the trace."""
    with profile() as prof:
        pass
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "missing")):
        prof.export_chrome_trace(tmp_path / "missing" / "trace.json")


def test_failed_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed export leaves the previous file unchanged, and no temporary file."""
    path = tmp_path / "trace.json"
    path.write_text("previous")
    with profile() as prof, record_function("a"):
        pass

    def full(*_arguments: Any) -> str:
        assert 2 == len(list(tmp_path.iterdir()))
        raise OSError("disk full")

    monkeypatch.setattr(chrome_trace, "_args", full)
    with pytest.raises(OSError, match="disk full"):
        prof.export_chrome_trace(path)
    assert ["trace.json"] == [each.name for each in tmp_path.iterdir()]
    assert "previous" == path.read_text()


def test_permissions_and_pipes(tmp_path: Path) -> None:
    """The file has the permissions of any new file; a pipe is written to, not replaced."""
    with profile() as prof:
        pass
    (tmp_path / "other").touch()
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "other").stat().st_mode == (tmp_path / "trace.json").stat().st_mode
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    prof.export_chrome_trace(pipe)
    reader.join(30)
    assert pipe.is_fifo()
    validated(json.loads(found[0]))


@pytest.mark.parametrize(("use_gzip", "suffix"), [(False, ".pt.trace.json"), (True, ".pt.trace.json.gz")])
def test_tensorboard_trace_handler(tmp_path: Path, use_gzip: bool, suffix: str) -> None:
    """Each cycle is written to a file with a name for TensorBoard, in a folder that is created."""
    folder = tmp_path / "log" / "profile"
    plan = schedule(wait=0, warmup=1, active=1)
    with profile(
        schedule=plan, acc_events=True, on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=use_gzip)
    ) as prof:
        assert not folder.exists()
        for _ in range(4):
            prof.step()
    paths = sorted(folder.iterdir())
    assert 2 == len(paths)
    worker = f"{socket.gethostname()}_{os.getpid()}."
    for path, step in zip(paths, (1, 3), strict=True):
        assert path.name.startswith(worker)
        assert path.name.endswith(suffix)
        assert path.name[len(worker) : -len(suffix)].isdigit()
        assert [f"ProfilerStep#{step}"] == [event["name"] for event in slices(validated(read(path)))]
    tensorboard_trace_handler(folder, "rank0")(prof)
    assert 1 == len(list(folder.glob("rank0.*.pt.trace.json")))


def test_tensorboard_trace_handler_cannot_create_the_folder(tmp_path: Path) -> None:
    """If the folder cannot be created, the callback raises torch's RuntimeError."""
    (tmp_path / "file").touch()
    with profile() as prof:
        pass
    with pytest.raises(RuntimeError, match=f"Can't create directory: {tmp_path}/file/log"):
        tensorboard_trace_handler(str(tmp_path / "file" / "log"))(prof)


def test_stacks(clock: ManualClock, tmp_path: Path) -> None:
    """Stacks have one line for each path of nested ranges, with self times; torch's file is empty."""
    prof = profile()
    prof.with_stack = True  # not by the argument, which warns
    with prof:
        for _ in range(2):
            with record_function("a b;c"):
                clock.advance(1)
                with record_function("inner"):
                    clock.advance(2)
    prof.export_stacks(tmp_path / "stacks.txt")
    assert "a_b_c 2000000\na_b_c;inner 4000000\n" == (tmp_path / "stacks.txt").read_text()
    prof.export_stacks(tmp_path / "cuda.txt", "self_cuda_time_total")
    assert "" == (tmp_path / "cuda.txt").read_text()
    with pytest.raises(ValueError, match="metric should be one of"):
        prof.export_stacks(tmp_path / "x", "beauty")
    prof.with_stack = False
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        prof.export_stacks(tmp_path / "x")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_a_million_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million ranges are all written, with progress on the terminal."""
    with profile() as prof:
        label = record_function("a")
        for _ in range(MANY):
            with label:
                pass
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_INTERVAL", 0.1)
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    with path.open() as file:
        assert MANY == sum(line.startswith('{"ph":"X"') for line in file)
    shown = terminal.getvalue().split("\r")
    assert re.fullmatch(rf"writing {path}: [0-9,]+ of 1,000,000 \([0-9]+%\)", shown[1])
    assert f"writing {path}: 1,000,000 of 1,000,000 (100%)\n" == shown[-1]


def test_memory_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing six times as many ranges does not take more memory."""
    monkeypatch.setattr(recording, "_MAX_DISORDER", 1000)
    cycle, peaks = recording.Recording("id"), []
    cycle.start()
    for number in range(30_000):
        with record_function(f"{number}"):
            pass
    cycle.stop()
    everything = cycle._began
    for part in (5_000, 30_000):
        cycle._began = everything[:part]
        tracemalloc.start()
        chrome_trace.write_chrome_trace(cycle, tmp_path / "trace.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 2 * 2**20


def test_out_of_order(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that threads append out of order are sorted, across the borders of the sorted parts too."""
    monkeypatch.setattr(recording, "_MAX_DISORDER", 4)
    cycle = recording.Recording("id")
    cycle.start()
    for _ in range(30):
        clock.advance(1)
        with record_function("a"):
            pass
    cycle.stop()
    began = cycle._began
    for index in range(0, 24, 6):
        began[index], began[index + 3] = began[index + 3], began[index]
    assert sorted(began, key=lambda each: each.start_ns) != began
    chrome_trace.write_chrome_trace(cycle, tmp_path / "trace.json")
    assert 30 == len(slices(validated(read(tmp_path / "trace.json"))))


def test_no_progress_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is not printed if standard error is not a terminal."""
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 1)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with profile() as prof:
        for _ in range(10):
            with record_function("a"):
                pass
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert "" == log.getvalue()
