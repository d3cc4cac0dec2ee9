"""The file with the values of a run: written rarely, and never in the way of a job."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from monitel.console.values.file import VALUES, ValuesFile
from monitel.console.values.latest import Latest
from monitel.console.values.run_values import Attempted, Progress, RunValues, Value
from monitel.console.values.stored import decode

if TYPE_CHECKING:
    import pytest

COUNTER, STAT = Value("samples", (), "", 8, 2, total=True), Value("loss.count", (), "", 4, 2, total=True)
GAUGE = Value("loss.mean", (), "", 0.5, 2)
NOW = Latest([GAUGE, STAT, COUNTER], frozenset([COUNTER.key]), {"rate": 0.5}, Progress(4, 3, 4, 1.0))


class Memory:
    """The folder of a run, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.writes = 0

    def read(self, name: str, limit: int) -> bytes:
        """Return a file."""
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return self.files[name][:limit]

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file."""
        self.files[name] = content
        self.writes += 1

    @property
    def values(self) -> RunValues:
        """The content of the file."""
        return decode(self.files[VALUES])


def values_file(attempt: str, latest: Latest | None = NOW) -> ValuesFile:
    """Return the file of a process with these values."""
    return ValuesFile("run-7", attempt, {"training.world_size": 2, "odd": ("a",)}, lambda: latest)


def stored(attempt: str, folder: Memory, last: Attempted | None, latest: Latest = NOW) -> RunValues:
    """Return the values after a process that has continued the run."""
    each = values_file(attempt, latest)
    each.resume(folder, last)
    each.store(folder, status="completed", last=True)
    return folder.values


def test_pause_between_writes_doubles_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of an hour writes about seventy times, and once more at its end."""
    now, folder, each = 0.0, Memory(), values_file("one")
    written: list[int] = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for second in range(3600):
        now = float(second)
        each.store(folder, status="", last=False)
        written += [second] * (folder.writes - len(written))
    assert [0, 1, 3, 7, 15, 31, 63, 123, 183] == written[:9]
    assert len(written) < 70
    each.store(folder, status="completed", last=True)
    assert (len(written) + 1, "completed") == (folder.writes, folder.values.status)


def test_second_pipeline_of_a_process_counts_nothing_twice() -> None:
    """Counters and steps are those of the process; the totals of Stats begin again with the pipeline."""
    folder = Memory()
    stored("zero", folder, None)
    stored("one", folder, Attempted("zero"))
    whole = NOW._replace(values=[STAT, COUNTER._replace(value=20)], progress=Progress(9, 8, 5, 2.0))
    found = stored("one", folder, Attempted("one", 0, 3), whole)
    assert {"samples": 28, "loss.count": 12, "loss.mean": 0.5} == {each.name: each.value for each in found.values}
    assert Progress(13, 8, 13, 4.0) == found.before.plus(found.progress)


def test_values_that_cannot_be_read_do_not_stop_the_ledger() -> None:
    """An error of the application's objects is not raised, and the file is not written any more."""

    def fail() -> Latest:
        raise RuntimeError

    folder, each = Memory(), ValuesFile("run-7", "one", {}, fail)
    each.store(folder, status="", last=False)
    each.store(folder, status="", last=True)
    values_file("one", None).store(folder, status="", last=True)
    assert {} == folder.files
