"""Collectors of black boxes: the next pipeline of this user, and the command ``replay``."""

from __future__ import annotations

import logging
import os
import re
import time
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import in_time, wait_until, warnings_with
from tests.support.hostile import refusing_url
from tests.support.inbox import DEADLINE
from tests.support.scripts import started, write_script
from tests.support.spools import folders, names
from tests.unit.blackbox.collection.dead_boxes import (
    SPOOL,
    box_with_requests,
    dead_process,
    header_of,
    make_box,
    spooled_bodies,
    spooled_deaths,
    write_file,
)
from tests.unit.blackbox.collection.killed_jobs import KILL, run_killed
from tests.unit.validity.samples import envelope

import monitel
from monitel_otlp.__main__ import main
from monitel_otlp.black_box.contents import header_values
from monitel_otlp.boxes.layout import HEADER, pack
from monitel_otlp.collection.collector import Collected, collect_boxes
from monitel_otlp.collection.death import Deaths, End
from monitel_otlp.config.run_folder import make_run_folder, remove_run_folder
from monitel_otlp.delivery import leftovers
from monitel_otlp.messages.request import REQUESTS, FrozenRequest
from monitel_otlp.messages.scopes import write_scope
from monitel_otlp.spool.lock import this_process

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

#: A job that is killed with events 0 to 4 and a window in its box.
JOB = """\
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
loss = Stat("loss", [COUNT], 3600.0)
for number in range(5):
    loss.add(1)
    monitel.emit("left", number=number)
kill()
"""


def log_request(name: str) -> FrozenRequest:
    """Return a request with one log record."""
    message = REQUESTS["logs"]()
    scope, now_ns = envelope("logs", message), time.time_ns()
    write_scope(scope)
    record = scope.log_records.add(event_name=name, time_unix_nano=now_ns, observed_time_unix_nano=now_ns)
    record.severity_number, record.severity_text = 9, "INFO"
    return FrozenRequest("logs", message.SerializeToString(), 1, now_ns)


def test_next_pipeline_delivers_the_box_of_a_killed_process(tmp_path: Path, receiver: Receiver, start: Start) -> None:
    """Events, windows and the death arrive once; the account of the new process is without them."""
    pid = run_killed(tmp_path, JOB, receiver.url)
    assert [] == receiver.requests
    pipeline = start()
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    receiver.wait_until(lambda: receiver.records("process.died") and receiver.values("loss.count"))
    pipeline.shutdown()
    assert list(range(5)) == [record.attributes["number"] for record in receiver.records("left")]
    assert [5] == receiver.values("loss.count")
    assert 1 == pipeline.account()["logs"].recorded
    assert {pid} == {record.resource["process.pid"] for record in receiver.records("left")}
    assert {os.getpid()} == {record.resource["process.pid"] for record in receiver.records("first")}
    assert [] == folders(tmp_path / "spool")


@pytest.mark.parametrize("endpoint", ["away", None])
def test_boxes_of_all_endpoints_become_spools_at_the_start(
    own_boxes: Path, tmp_path: Path, start: Start, endpoint: str | None
) -> None:
    """No backend has to accept a request first; spools with another mark are not sent."""
    box_with_requests(own_boxes, tmp_path / "others" / SPOOL)
    pipeline = start(endpoint=refusing_url() if endpoint else None)
    wait_until(lambda: spooled_deaths(tmp_path / "others"))
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(tmp_path / "others")
    pipeline.shutdown()
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(tmp_path / "others")


def test_pipeline_without_a_box_collects_nothing(own_boxes: Path, tmp_path: Path, start: Start) -> None:
    """Black boxes are switched off, and there is no thread."""
    box = box_with_requests(own_boxes, tmp_path / "others" / SPOOL)
    pipeline = start(black_box=False)
    assert pipeline.engine is not None
    assert pipeline.engine._leftovers is not None
    assert not pipeline.engine._leftovers._thread.is_alive()
    pipeline.shutdown()
    assert box.exists()


def test_hanging_collection_delays_neither_start_nor_exit(
    start: Start, monkeypatch: pytest.MonkeyPatch, own_boxes: Path
) -> None:
    """The file system of another process's spool may not respond."""
    hung, resumed = Event(), Event()

    def hang(*_: Any, **__: Any) -> Collected:
        hung.set()
        resumed.wait(DEADLINE)
        return Collected()

    monkeypatch.setattr(leftovers, "collect_boxes", hang)
    with in_time(2.0):
        pipeline = start()
        assert hung.wait(DEADLINE)
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)
        assert pipeline.shutdown()
    resumed.set()


def test_box_that_cannot_be_collected_is_logged(
    own_boxes: Path, tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The pipeline works as without it."""
    box = make_box(own_boxes, tmp_path / "others" / SPOOL)
    (box / "header").write_bytes(b"\0" * 100)
    with caplog.at_level(logging.WARNING, "monitel.otlp"):
        pipeline = start()
        wait_until(lambda: warnings_with(caplog, box.name, "set aside"))
        monitel.emit("event")
        assert pipeline.force_flush(DEADLINE)


#: A job that replaces its program, and its pipeline with it, by another one that waits.
EXEC = """\
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
monitel.emit("before")
wait_for_cut()
os.execv(sys.executable, [sys.executable, "-c", "print('new', flush=True); input()"])
"""


def test_telemetry_before_an_exec_is_collected_without_a_death(
    own_boxes: Path, tmp_path: Path, receiver: Receiver
) -> None:
    """The process runs another program, without the pipeline."""
    with started(tmp_path, write_script(tmp_path, KILL + EXEC), receiver.url) as process:
        assert process.stdout is not None
        assert "new\n" == process.stdout.readline()
        collected = collect_boxes(own_boxes, fallback=tmp_path / "fallback")
        assert ([], []) == (collected.problems, collected.deaths)
    assert 0 == replay(tmp_path / "spool", "--endpoint", receiver.url)
    assert ["before", "makes the box"] == receiver.record_names()


def test_box_of_a_run_is_left_to_it_while_it_runs(own_boxes: Path, tmp_path: Path) -> None:
    """``monitel run`` observes how the process ends. If it was killed, any collector may take the box."""
    spool_dir = tmp_path / "runs" / SPOOL
    folder, announcements = make_run_folder()
    for number in (1, 2):
        box = box_with_requests(own_boxes, spool_dir, number)
        header = header_of(spool_dir)._replace(run=folder)
        write_file(box / HEADER, pack(header_values(header)))
    try:
        assert 0 == collect_boxes(own_boxes, fallback=tmp_path / "fallback").boxes
        assert 2 == collect_boxes(own_boxes, fallback=tmp_path / "fallback", run=folder).boxes
        box_with_requests(own_boxes, spool_dir, 3)
        write_file(own_boxes / "4194000-1-000003" / HEADER, pack(header_values(header)))
        assert 0 == collect_boxes(own_boxes, fallback=tmp_path / "fallback").boxes
    finally:
        os.close(announcements)
    assert 1 == collect_boxes(own_boxes, fallback=tmp_path / "fallback").boxes
    remove_run_folder(folder)


def test_box_before_an_exec_is_not_left_to_the_run(own_boxes: Path, tmp_path: Path) -> None:
    """The run observes how the process ends, with its new program: the end of the earlier one is not a death."""
    folder, announcements = make_run_folder()
    try:
        box = make_box(own_boxes, tmp_path / "runs" / SPOOL, owner=this_process(), requests=[log_request("before")])
        header = header_of(tmp_path / "runs" / SPOOL, this_process())._replace(run=folder)
        write_file(box / HEADER, pack(header_values(header)))
        outcome = collect_boxes(own_boxes, fallback=tmp_path / "fallback")
        assert (1, [], []) == (outcome.items, outcome.deaths, outcome.problems)
    finally:
        os.close(announcements)
        remove_run_folder(folder)


def test_box_waits_until_its_end_is_observed(own_boxes: Path, tmp_path: Path) -> None:
    """If several ranks die at once, ``monitel run`` observes the end of one first."""
    deaths = Deaths()
    for number in (1, 2):
        owner = dead_process()._replace(pid=str(4194000 + number))
        make_box(own_boxes, tmp_path / "runs" / SPOOL, number=number, owner=owner)
    deaths.add(4194001, End(signal=9))
    first = collect_boxes(own_boxes, fallback=tmp_path / "fallback", deaths=deaths, observed_only=True)
    assert ["killed by SIGKILL"] == [death.how for death in first.deaths]
    assert 1 == len(collect_boxes(own_boxes, fallback=tmp_path / "fallback", deaths=deaths).deaths)


def replay(*arguments: object) -> int:
    """Run the command."""
    return main(["replay", *map(str, arguments)])


def test_replay_without_a_folder_collects_and_delivers_everything(
    own_boxes: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The spools of the default folders, and those of the boxes, wherever they are."""
    pid = run_killed(tmp_path, JOB.replace('spool_dir="spool", ', ""), receiver.url)
    make_box(own_boxes, tmp_path / "others" / SPOOL, requests=[log_request("of a box")])
    assert 0 == replay("--endpoint", receiver.url)
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"collected \d+ items from 2 black boxes", printed[0])
    assert any(line.startswith(f"process {pid} on ") for line in printed)
    assert re.fullmatch(r"delivered \d+ items from 2 spools", printed[-1])
    assert 2 == len(receiver.records("process.died"))
    assert 1 == len(receiver.records("of a box"))
    assert list(range(5)) == [record.attributes["number"] for record in receiver.records("left")]
    assert [] == names(own_boxes)


def test_replay_without_a_folder_uses_the_variable(
    own_boxes: Path, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MONITEL_SPOOL_DIR is where jobs with it have their spools."""
    make_box(own_boxes, tmp_path / "mine" / SPOOL, requests=[log_request("of a box")])
    monkeypatch.setenv("MONITEL_SPOOL_DIR", str(tmp_path / "mine"))
    assert 0 == replay("--endpoint", receiver.url)
    assert ["of a box", "process.died"] == receiver.record_names()


def test_replay_of_a_folder_names_spools_elsewhere(
    own_boxes: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """All boxes are collected; those of jobs with another spool folder are not sent."""
    make_box(own_boxes, tmp_path / "runs" / SPOOL, number=1, requests=[log_request("here")])
    make_box(own_boxes, tmp_path / "others" / SPOOL, number=2, requests=[log_request("elsewhere")])
    assert 0 == replay(tmp_path / "runs", "--endpoint", receiver.url)
    assert ["here", "process.died"] == receiver.record_names()
    (elsewhere,) = folders(tmp_path / "others")
    assert f"a black box is now in the spool {str(elsewhere)!r}" in capsys.readouterr().out


def test_replay_of_a_folder_with_boxes(tmp_path: Path, receiver: Receiver) -> None:
    """A folder that was given as ``black_box_dir`` may be given to ``replay``, too."""
    make_box(tmp_path / "boxes", tmp_path / "others" / SPOOL, requests=[log_request("of a box")])
    assert 0 == replay(tmp_path / "boxes", "--endpoint", receiver.url)
    assert ["of a box", "process.died"] == receiver.record_names()
    assert [] == names(tmp_path / "boxes")


def test_replay_reports_a_damaged_box_once(
    own_boxes: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are delivered; the exit status is 1."""
    box = make_box(own_boxes, tmp_path / "runs" / SPOOL, number=1)
    (box / "header").write_bytes(b"\0" * 100)
    make_box(own_boxes, tmp_path / "runs" / SPOOL, number=2)
    assert 1 == replay(tmp_path / "runs", "--endpoint", receiver.url)
    assert ["process.died"] == receiver.record_names()
    assert 1 == capsys.readouterr().err.count(box.name)
    make_box(own_boxes, tmp_path / "runs" / SPOOL, number=3)
    assert 0 == replay(tmp_path / "runs", "--endpoint", receiver.url)


def test_replay_without_anything_to_deliver(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the folders; the exit status is 1."""
    assert 1 == replay("--endpoint", receiver.url)
    error = capsys.readouterr().err
    assert "hold no spooled telemetry: nothing is left to deliver" in error
    assert str(tmp_path / "state" / "monitel") in error
