"""File systems that hang: what they hold is left out and named, once they have had their time."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from monitel_otlp.compare import targets
from monitel_otlp.compare.disks import Disks, HangingError
from monitel_otlp.compare.targets import Places, find_run
from monitel_otlp.compare.telemetry import Telemetry
from monitel_otlp.spool.folder import SpoolError
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/nowhere/runs")


@pytest.fixture
def hanging() -> Iterator[Event]:
    """An event for which reads wait until the end of the test."""
    event = Event()
    yield event
    event.set()


def test_items_and_errors_come_through() -> None:
    """In their order, from one thread, and the error after the last item."""

    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("gone")

    each = Disks(60).each(ROOT, items)
    assert (1, 2) == (next(each), next(each))
    with pytest.raises(OSError, match="gone"):
        next(each)
    assert 7 == Disks(60).read(ROOT, lambda: 7)


def test_file_system_that_hangs_is_not_touched_again(hanging: Event) -> None:
    """Nor is what is below the folder; others are read as before."""
    disks, calls = Disks(0.05), []
    with pytest.raises(HangingError, match="'/nowhere/runs' cannot be read: its file system has not answered"):
        disks.read(ROOT, hanging.wait)
    for folder in (ROOT, ROOT / "spool"):
        with pytest.raises(HangingError):
            disks.read(folder, lambda: calls.append("read"))
    assert [] == calls
    assert 7 == disks.read(ROOT.parent, lambda: 7)


def test_hanging_in_the_middle(hanging: Event) -> None:
    """The items before stay."""

    def items() -> Iterator[int]:
        yield 1
        hanging.wait()

    each = Disks(0.2).each(ROOT, items)
    assert 1 == next(each)
    with pytest.raises(HangingError):
        next(each)


def test_spool_that_hangs_is_left_out_and_named(hanging: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of 64 spools takes time."""
    monkeypatch.setattr(Spool, "peek", lambda *_: iter([hanging.wait()]))
    problems: list[str] = []
    found = Telemetry(lambda _: True, problems, Disks(0.2))
    began = time.monotonic()
    for number in range(64):
        found.add_spool(ROOT / f"{number}")
    assert time.monotonic() - began < 64 * 0.2
    assert [] == found.processes
    assert {"'/nowhere/runs' cannot be read: its file system has not answered within 0.2 s"} == set(problems)


def test_ledgers_that_hang_are_left_out_and_named(
    hanging: Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is unknown then, and the reason is among the problems."""
    monkeypatch.setattr(targets, "read_stored", lambda _: hanging.wait())
    problems: list[str] = []
    with pytest.raises(SpoolError, match="there is no run"):
        find_run("run-7", Places([tmp_path / "runs"], tmp_path / "boxes", Disks(0.2)), problems)
    assert any("has not answered within 0.2 s" in each for each in problems)
