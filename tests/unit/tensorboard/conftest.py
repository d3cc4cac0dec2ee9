"""Fixtures: TensorBoard's reader, waiting with a deadline, scripts, and a disk that can fail."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Event as Signal
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from monitel_tensorboard.event_file import EventFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LEDGER = ("training.time/", "training.goodput")


@pytest.fixture
def read() -> Callable[..., dict[str, list[tuple[int, float | str]]]]:
    """Return a function that reads the (step, value) pairs of a folder by tag, with TensorBoard's reader.

    Those of the ledger, whose values depend on the time, are returned instead of all others with ``ledger=True``.
    """

    def read(log_dir: Path, *, ledger: bool = False) -> dict[str, list[tuple[int, float | str]]]:
        reader = EventAccumulator(str(log_dir), size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        scalars = {
            tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
        }
        texts = {
            tag: [(point.step, point.tensor_proto.string_val[0].decode()) for point in reader.Tensors(tag)]
            for tag in reader.Tags()["tensors"]
        }
        found = scalars | texts
        return {tag: points for tag, points in found.items() if ledger == tag.startswith(_LEDGER)}

    return read


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until a condition is true, for at most a minute."""

    def eventually(holds: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + 60, Signal()
        while not holds():
            assert time.monotonic() < deadline, "it never came"
            pause.wait(0.005)

    return eventually


@pytest.fixture
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs a script in a new process, with a timeout, and returns its output."""

    def run_script(script: str, *arguments: object, timeout: float = 120, returncode: int = 0) -> str:
        path = tmp_path_factory.mktemp("script") / "script.py"
        path.write_text(script)
        command = [sys.executable, str(path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == returncode, done.stderr
        return done.stdout + done.stderr

    return run_script


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
    """Replace the disk of all event files of the test."""
    disk = Disk()
    monkeypatch.setattr(EventFile, "append", lambda file, points: disk.append(file, points))  # noqa: PLW0108
    yield disk
    disk.works.set()
