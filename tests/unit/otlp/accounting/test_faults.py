"""Items that cannot be formatted or encoded, unusual timeouts, and exceptions in a phase of the exit."""

import logging
import math
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start, reported_drops
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, Stat
from monitel.blackbox.account import Account
from monitel_otlp.metrics.windows import Series, WindowsEncoder
from monitel_otlp.pipeline import exit_summary


class Unprintable(Exception):  # noqa: N818  not a fault of this package
    def __str__(self) -> str:
        raise ValueError("a fault of the application")


class UnprintableMessage:
    def __str__(self) -> str:
        raise ValueError("a fault of the application")


def test_log_record_is_delivered_or_counted(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record without a time is dropped; one that cannot be formatted is sent, and reported as by any handler."""
    before = [*logging.getLogger().handlers]
    pipeline = start(logging_level="INFO")
    (handler,) = (each for each in logging.getLogger().handlers if each not in before)
    for fields in (
        {"msg": "%d", "args": ("x",)},
        {"msg": UnprintableMessage()},
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
    expected = ["%d", "<UnprintableMessage", "first", "second", "third"]
    assert expected == [str(each.body).split()[0] for each in receiver.records()]


def test_shutdown_with_any_timeout_keeps_queued_items(start: Start) -> None:
    """A shutdown writes to disk even if its timeout is zero, negative or not a number."""
    for timeout in (math.inf, math.nan, 0, -1):
        pipeline = start(endpoint=None)
        for _ in range(10):
            monitel.emit("event")
        assert pipeline.force_flush(timeout) in {True, False}
        monitel.emit("event")
        assert pipeline.shutdown(timeout), pipeline.account()
        assert 11 == pipeline.account()["logs"].on_disk


def test_windows_that_cannot_be_encoded_are_counted(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the encoding of one window loses only that window, and is logged once."""

    def faulty(encoder: WindowsEncoder, draft: Any, series: Series, *target: Any) -> None:
        if series.described.definition.name == "bad":
            raise OverflowError("injected")
        write(encoder, draft, series, *target)

    write = WindowsEncoder._write_row
    monkeypatch.setattr(WindowsEncoder, "_write_row", faulty)
    pipeline = start()
    for name in ("bad", "good"):
        stat = Stat(name, [COUNT], 60.0)
        stat.add(1)
        stat.flush()
        assert not pipeline.force_flush(DEADLINE)
    assert [1] == receiver.values("good.count")
    assert {"metrics": 1} == reported_drops(receiver, pipeline, "encoding")
    assert 1 == len(warnings_with(caplog, "cannot be encoded"))


@pytest.mark.parametrize("phase", ["_call_application", "_collect", "box._snapshot"])
def test_exception_in_a_phase_of_the_exit_loses_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Everything is written to disk even if an earlier phase raises."""
    pipeline = start(endpoint="http://127.0.0.1:9")
    for _ in range(10):
        monitel.emit("event")
    assert not pipeline.force_flush(0.3)

    def broken(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("injected")

    owner: Any = pipeline.engine
    *owners, name = phase.split(".")
    for each in owners:
        owner = getattr(owner, each)
    monkeypatch.setattr(owner, name, broken)
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


def test_command_is_for_a_shell() -> None:
    """A folder whose name has a space or a quote is one argument of the command."""
    folder = PurePosixPath("/data/my runs/it's")
    accounts = {signal: Account(1, 0, 1, 0, 0, {}) for signal in ("metrics", "logs", "traces")}
    line = exit_summary(accounts, folder, offline=True, stored=True)
    command = line.partition("replay with: ")[2]
    assert ["monitel", "replay", str(folder), "--endpoint", "http://HOST:4318"] == shlex.split(command)
