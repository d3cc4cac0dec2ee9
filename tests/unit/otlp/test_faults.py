"""Faults in any part lose nothing uncounted: items that cannot be encoded, timeouts, exceptions, an ended process."""

import logging
import math
import os
import random
import shlex
from collections import Counter
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, check_accounts
from tests.support.producers import answer_at_random, checked_continuously, emit_items, make_small, run_together
from tests.support.receiver import Receiver
from tests.unit.console.recorded import KILLED, SECOND, START, recorded

import monitel
from monitel.blackbox import disk, journal
from monitel.blackbox.box import Box
from monitel.blackbox.death import Deaths, End
from monitel.blackbox.folder import Folder, FolderError
from monitel.blackbox.record import Settled
from monitel.blackbox.recorder import Recorder
from monitel.blackbox.recovery import claim
from monitel_otlp.export.collector import collect
from monitel_otlp.export.records import take
from monitel_otlp.messages.request import LogRecordWriter
from monitel_otlp.metrics.totals import Draft
from monitel_otlp.metrics.windows import WindowWriter
from monitel_otlp.traces.span_queue import QueuedSpans
from monitel_otlp.transport.http import HttpTransport
from monitel_run.folder import make_run_folder, remove_run_folder


class Unprintable(Exception):  # noqa: N818  not a fault of this package
    def __str__(self) -> str:
        raise ValueError("a fault of the application")


def test_log_record_arrives_or_is_counted(receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """A record without a time is dropped; one that cannot be formatted is sent, and reported as by any handler."""
    before = [*logging.getLogger().handlers]
    pipeline = start(logging_level="INFO")
    (handler,) = (each for each in logging.getLogger().handlers if each not in before)
    for fields in (
        {"msg": "%d", "args": ("x",)},
        {"msg": Unprintable()},
        {"msg": "text", "created": None},
        {"msg": "first", "exc_info": (Unprintable, Unprintable(), None)},
        {"msg": "second \ud800", "pathname": "/\udcff"},
        {"msg": "third", "name": None},
    ):
        record = {"name": "mine", "levelno": logging.INFO, "levelname": "INFO", "pathname": "file", **fields}
        handler.handle(logging.makeLogRecord(record))
    assert 2 == capsys.readouterr().err.count("--- Logging error ---")
    assert not pipeline.force_flush(DEADLINE)
    account = pipeline.account()["logs"]
    assert (6, 5, {"encoding": 1}) == (account.recorded, account.delivered, dict(account.dropped))
    expected = ["%d", "<Unprintable", "first", "second", "third"]
    assert expected == [str(each.body).split()[0] for each in receiver.records()]


def test_shutdown_with_any_timeout_keeps_queued_items(start: Start) -> None:
    for timeout in (math.inf, math.nan, 0, -1):
        pipeline = start(endpoint=None)
        for _ in range(10):
            monitel.emit("event")
        assert pipeline.force_flush(timeout) in {True, False}
        monitel.emit("event")
        assert pipeline.shutdown(timeout), pipeline.account()
        assert 11 == pipeline.account()["logs"].on_disk


@pytest.mark.parametrize("phase", ["engine._call_application", "engine._collect", "engine.box._snapshot"])
def test_exception_in_the_exit_loses_nothing(start: Start, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    pipeline = start(endpoint="http://127.0.0.1:9")
    for _ in range(10):
        monitel.emit("event")
    assert not pipeline.force_flush(0.3)
    owner, _, name = phase.rpartition(".")
    monkeypatch.setattr(attrgetter(owner)(pipeline), name, lambda *_, **__: 1 / 0)
    assert not pipeline.shutdown()
    account = pipeline.account()["logs"]
    assert (10, 0) == (account.on_disk, account.waiting)


def test_what_no_spool_folder_could_take_is_named_where_it_is(
    start: Start, own_boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line at the end names the black box, which has the items, and not the folder that could not be made."""
    pipeline = start(endpoint=None)
    (tmp_path / "spool").touch()
    monitel.emit("event")
    pipeline.shutdown()
    command = capsys.readouterr().err.partition("replay with: ")[2]
    assert str(own_boxes) == str(Path(shlex.split(command)[2]).parent)


ERRORS: list[Any] = [partial(OSError, 5), FolderError, RuntimeError, MemoryError]
PLACES: dict[str, list[tuple[Any, str]]] = {
    "transport": [(HttpTransport, "_attempt")],
    "disk": [(disk, "write_at"), (Folder, "open_file"), (Folder, "read"), (Folder, "unlink"), (Box, "_open_disk")],
    "box": [(Settled, "note_totals"), (Box, "_write_state"), (Box, "note_position"), (journal, "map_file")],
    "encoders": [(LogRecordWriter, "_write_record"), (WindowWriter, "_write_points"), (Draft, "measured")],
    "recorder": [(QueuedSpans, "_encode"), (Recorder, "_define_stats")],
}


@pytest.mark.parametrize("part", PLACES)
def test_exceptions_in_any_part_lose_nothing_uncounted(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """A third of its calls fail, with any exception, beside a backend that is there every other time."""
    make_small(monkeypatch)
    choose = random.Random(part)
    pipeline = start(export_interval=0.02, spans=True, logging_level="INFO")
    answer_at_random(receiver, len(part), ["503", "200"])
    recorded: list[Counter[str]] = []

    def faulty(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if choose.random() < 0.3:
                raise choose.choice(ERRORS)("injected")
            return original(*arguments, **options)

        return call

    for owner, name in PLACES[part]:
        monkeypatch.setattr(owner, name, faulty(getattr(owner, name)))
    with checked_continuously(pipeline):
        run_together(*(lambda seed=seed: recorded.append(emit_items(240, seed)) for seed in range(4)))
        pipeline.force_flush(0.3)
    emit_items(20, 4)  # for the shutdown
    pipeline.shutdown()
    monkeypatch.undo()
    check_accounts(pipeline)
    accounts = pipeline.account()
    expected = sum(recorded, Counter())
    assert {} == {signal: each for signal, each in accounts.items() if each.recorded < expected[signal]}
    ids = {(each.name, each.body, each.attributes.get("id")) for each in receiver.records()}
    assert accounts["logs"].delivered <= len(ids)
    assert accounts["traces"].delivered <= len({each.span_id for each in receiver.spans()})
    assert [] == [each.getMessage() for each in caplog.records if "bug in monitel" in each.getMessage()]
    assert (part == "encoders") == len(warnings_with(caplog, "cannot be encoded"))
    caplog.clear()  # the tracebacks of its records keep Stats


def test_end_that_a_parent_has_observed_is_in_the_event(own_boxes: Path, tmp_path: Path) -> None:
    """A box of a process whose end is still to be observed is left, by the parent and by everybody else, unlocked."""
    folder, announcements = make_run_folder()
    boxes, spool = own_boxes, tmp_path / "other"
    try:
        with recorded(boxes, tmp_path / "spool") as process:
            process.killed(run=folder)
            deaths = Deaths()
            with patch(f"{collect.__module__}.claim", wraps=claim) as claimed:
                assert 0 == collect(boxes, spool).boxes
                assert 0 == collect(boxes, spool, deaths=deaths, run=folder, observed_only=True).boxes
            assert boxes / KILLED not in [each.args[0] for each in claimed.call_args_list]  # else the lock is taken
            with pytest.raises(FolderError, match="is left to the monitel run"):
                take(boxes / KILLED, boxes)
            deaths.add(4194399, End(signal=9, time_ns=START + 20 * SECOND), "5")
            (death,) = collect(boxes, spool, deaths=deaths, run=folder, observed_only=True).deaths
        assert "SIGKILL" == death.event().attributes["process.exit.signal"]
        assert [] != [name for name in os.listdir(folder) if name.startswith("report-")]  # noqa: PTH208
    finally:
        os.close(announcements)
        remove_run_folder(folder)
