"""What the tests of this folder share: TensorBoard's own reader, waiting with a deadline, scripts."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Event as Signal
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

import monitel
from monitel_tensorboard.event_file import EventFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Points = dict[str, list[tuple[int, float | str]]]


def read(log_dir: Path) -> Points:
    """Read all (step, value) pairs of a folder, by tag, with TensorBoard's own reader."""
    reader = EventAccumulator(str(log_dir), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    points: Points = {
        tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }
    for tag in reader.Tags()["tensors"]:
        points[tag] = [
            (point.step, point.tensor_proto.string_val[0].decode()) for point in reader.Tensors(tag)
        ]
    return points


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until ``holds()``, for 20 seconds at most."""
    deadline, pause = time.monotonic() + 20, Signal()
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        pause.wait(0.005)


class Disk:
    """Stands before the real disk: it can be held up and can fail."""

    def __init__(self) -> None:
        self.open = Signal()
        self.open.set()
        self.error: OSError | None = None
        self.slices: list[int] = []
        self._append = EventFile.append

    def append(self, file: EventFile, points: list[object]) -> None:
        """Do what ``EventFile.append`` does, when the test lets it."""
        self.slices.append(len(points))
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        self._append(file, points)  # type: ignore[arg-type]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Every event file of the test lies on this disk."""
    disk = Disk()
    monkeypatch.setattr(EventFile, "append", lambda file, points: disk.append(file, points))
    yield disk
    disk.open.set()


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training step is known, and what the test sets is forgotten after it."""
    monkeypatch.setattr(monitel, "get_step", lambda: None)


def run_script(script: str, *arguments: object, timeout: float = 60) -> str:
    """Run ``script`` in a Python of its own and return what it printed; it must end well, and in time."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
