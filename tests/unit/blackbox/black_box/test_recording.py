"""The contents of the box of a running pipeline, read from outside."""

from __future__ import annotations

import gc
import math
import os
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checks import wait_until
from tests.support.inbox import DEADLINE, Answer

import monitel
from monitel.open_windows import live_stats
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.black_box.recorder import Recorder
from monitel_otlp.boxes.layout import BoxError
from monitel_otlp.boxes.place import new_box
from monitel_otlp.messages.request import REQUESTS
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel_otlp import Pipeline
    from monitel_otlp.black_box.contents import Contents


def boxes() -> list[Path]:
    """Return the boxes of this test."""
    root = Path(os.environ["MONITEL_BLACK_BOX_DIR"])
    return [path for path in root.iterdir() if not path.name.startswith(".")] if root.exists() else []


def contents() -> Contents:
    """Read the only box."""
    (path,) = boxes()
    folder = Folder.open(path)
    try:
        return read_box(folder)
    finally:
        folder.close()


def event_names(found: Contents) -> list[str]:
    """Return the names of all events in the box: in the journal, in parts, and in requests."""
    names = [plain[3] for plain in found.events]
    for request in (*found.parts, *found.requests):
        if request.signal == "logs":
            message: Any = REQUESTS["logs"].FromString(request.body)
            names += [
                record.event_name
                for resource in message.resource_logs
                for scope in resource.scope_logs
                for record in scope.log_records
            ]
    return names


def samples(found: Contents, name: str) -> int:
    """Return the number of samples of a Stat in the box: in open windows, in parts, and in requests."""
    number = sum(each.snapshot.count for each in found.windows if found.series[each.stat.series].plain[0] == name)
    last = 0
    for request in (*found.requests, *found.parts):
        if request.signal == "metrics":
            message: Any = REQUESTS["metrics"].FromString(request.body)
            for resource in message.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == f"{name}.count":
                            last = max([last, *(point.as_int for point in metric.sum.data_points)])
    return number + last


def samples_so_far(name: str) -> int:
    """Return the number of samples of a Stat in the only box; 0 while the box is being made."""
    try:
        return samples(contents(), name) if boxes() else 0
    except BoxError:
        return 0


def test_event_is_in_the_box_when_emit_returns(receiver: Receiver, start: Start) -> None:
    """Once, wherever it is on its way."""
    start(export_interval=3600)
    for number in range(20):
        monitel.emit(f"event.{number}")
        assert [f"event.{each}" for each in range(number + 1)] == sorted(
            event_names(contents()), key=lambda name: int(name.split(".")[1])
        )


def test_cut_within_a_second_has_the_open_windows(receiver: Receiver, start: Start) -> None:
    """Without an export."""
    start(export_interval=3600)
    stat = monitel.Stat("loss", [monitel.COUNT], 3600.0)
    for number in range(100):
        stat.add(number)
    wait_until(lambda: samples_so_far("loss") == 100, "a cut with 100 samples")
    (window,) = contents().windows
    assert (0, 99, 99 * 50) == (window.snapshot.min, window.snapshot.max, window.snapshot.sum)


def test_cut_has_the_windows_of_the_oldest_stats(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With more Stats than a cut may have without delaying the job; this is logged once."""
    gc.collect()  # Stats of other tests
    monkeypatch.setattr("monitel_otlp.black_box.recorder._MOST_STATS", 3 + len(live_stats()))
    start(export_interval=3600)
    stats = [monitel.Stat(f"stat.{number}", [monitel.COUNT], 3600.0) for number in range(5)]
    for stat in stats:
        stat.add(1.0)
    wait_until(lambda: samples_so_far("stat.2") == 1, "a cut with three Stats")
    stats[0].add(1.0)
    wait_until(lambda: samples_so_far("stat.0") == 2, "another cut")
    assert [2, 1, 1, 0, 0] == [samples_so_far(f"stat.{number}") for number in range(5)]
    assert 1 == caplog.text.count("the black box has the open windows of the oldest")


def test_no_item_is_missing_or_twice_at_any_stage(receiver: Receiver, start: Start) -> None:
    """While the backend is away samples move from open windows to parts and to requests, and stay as many."""
    receiver.rule(lambda _: Answer(503))
    pipeline: Pipeline = start(export_interval=0.3)
    stat = monitel.Stat("loss", [monitel.COUNT], 3600.0)
    for number in range(1, 30):
        stat.add(number)
        monitel.emit("step")
        if number % 3 == 0:
            stat.flush()
        if number % 7 == 0:
            pipeline.force_flush(0.05)
        found = contents()
        assert number == event_names(found).count("step")
        assert samples(found, "loss") <= number
    wait_until(lambda: samples(contents(), "loss") == 29, "a cut with all samples")


def test_acknowledged_request_leaves_the_box(receiver: Receiver, start: Start) -> None:
    """And nothing of it is left."""
    pipeline = start(export_interval=3600)
    monitel.emit("event")
    assert ["event"] == event_names(contents())
    assert pipeline.force_flush(DEADLINE)
    wait_until(lambda: not event_names(contents()), "a box without the event")
    assert ["event"] == receiver.record_names()


def test_clean_end_removes_the_box(receiver: Receiver, start: Start) -> None:
    """The items were delivered, or are in the spool."""
    pipeline = start()
    monitel.emit("event")
    assert boxes()
    assert pipeline.shutdown()
    assert [] == boxes()
    root = Path(os.environ["MONITEL_BLACK_BOX_DIR"])
    assert [] == list(root.iterdir())


def test_idle_pipeline_has_no_box(receiver: Receiver, start: Start) -> None:
    """So that compile workers, and tools with the same variables, leave none."""
    pipeline = start(export_interval=0.05)
    assert pipeline.force_flush(DEADLINE)
    assert [] == boxes()


def test_without_a_box_requests_stay_in_memory(
    receiver: Receiver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is not used more than before, if there is no place for a box or if it is switched off."""
    (tmp_path / "link").symlink_to(tmp_path)
    for variable, value in (("MONITEL_BLACK_BOX_DIR", str(tmp_path / "link")), ("MONITEL_BLACK_BOX", "0")):
        monkeypatch.setenv(variable, value)
        receiver.rule(lambda _: Answer(503))
        pipeline = start(export_interval=3600)
        monitel.emit("event")
        assert not pipeline.force_flush(0.2)
        account = pipeline.account()["logs"]
        assert (1, 0) == (account.waiting, account.on_disk)
        pipeline.shutdown()


def test_encoder_rests_without_a_box(
    receiver: Receiver, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder waits for the next export, and does not look for a cut that is due."""
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("MONITEL_BLACK_BOX_DIR", str(tmp_path / "link"))
    engine = start().engine
    assert engine is not None
    monitel.emit("event")  # there is no place for a box
    wait_until(lambda: math.inf == engine._recording.due, "no further cut")
    rounds: list[bool] = []
    commit = engine.encoder._commit

    def count(complete: bool) -> None:
        rounds.append(complete)
        commit(complete)

    monkeypatch.setattr(engine.encoder, "_commit", count)
    assert not Event().wait(1.5)
    assert len(rounds) < 3


def test_requests_without_room_in_the_box_go_to_the_spool(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an outage nothing is only in memory."""
    monkeypatch.setenv("MONITEL_BLACK_BOX_SIZE", "131072")
    receiver.rule(lambda _: Answer(503))
    pipeline = start(export_interval=0.05)

    def emit_more() -> bool:
        monitel.emit("event", text="x" * 20_000)
        pipeline.force_flush(0.05)
        return pipeline.account()["logs"].on_disk > 0

    wait_until(emit_more, "requests in the spool")


def test_stacks_are_written_on_request(receiver: Receiver, start: Start) -> None:
    """Another process asks by a file, and the process answers with its next cut."""
    start(export_interval=3600)
    monitel.emit("event")
    (path,) = boxes()
    (path / "stacks-wanted").touch()
    wait_until(lambda: contents().stacks_now, "stacks")
    assert "test_stacks_are_written_on_request" in contents().stacks_now
    wait_until(lambda: not (path / "stacks-wanted").exists(), "the request to be done")


def test_removed_box_is_given_up_and_nothing_is_lost(receiver: Receiver, start: Start) -> None:
    """A cleaner of the system has removed it: one warning, and the pipeline continues."""
    pipeline = start(export_interval=0.1)
    monitel.emit("before")
    (path,) = boxes()
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    for number in range(5):
        monitel.emit(f"after.{number}")
    assert pipeline.force_flush(DEADLINE)
    assert ["after.0", "after.1", "after.2", "after.3", "after.4", "before"] == sorted(receiver.record_names())


@pytest.mark.parametrize("reused", [False, True], ids=["closed", "reused"])
def test_box_with_closed_descriptors_is_removed(
    receiver: Receiver, start: Start, tmp_path: Path, reused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a program that detaches itself: a collector would deliver its items again, and report a death."""
    pipeline = start(export_interval=3600)
    monitel.emit("before")
    root = os.environ["MONITEL_BLACK_BOX_DIR"]
    (tmp_path / "checkpoint").write_bytes(b"checkpoint")
    stranger = os.open(tmp_path / "checkpoint", os.O_RDWR)
    opened = {int(link.name): os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    own = [number for number, path in opened.items() if path.startswith(os.path.realpath(root))]
    assert len(own) >= 6  # four files, the lock, the folder
    for number in own:
        os.dup2(stranger, number) if reused else os.close(number)
    monitel.emit("after")
    wait_until(lambda: not list(Path(root).iterdir()), "no box")
    assert pipeline.force_flush(DEADLINE)
    assert ["after", "before"] == sorted(receiver.record_names())
    assert 1 == sum("black box" in record.message for record in caplog.records)
    for number in (stranger, *(own if reused else ())):
        os.close(number)  # which was left open
    assert b"checkpoint" == (tmp_path / "checkpoint").read_bytes()


def test_forked_child_has_a_box_of_its_own(receiver: Receiver, start: Start) -> None:
    """And leaves that of its parent alone."""
    start(export_interval=3600)
    monitel.emit("parent")
    before = contents()
    if (child := os.fork()) == 0:
        monitel.emit("child")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert 2 == len(boxes())
    own = next(path for path in boxes() if path.name.startswith(f"{os.getpid()}-"))
    folder = Folder.open(own)
    after = read_box(folder)
    folder.close()
    assert before.header == after.header
    assert ["parent"] == event_names(after)


def test_event_while_the_box_is_made_makes_no_second_box(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a signal handler: a second box would stay, and would be collected as that of a killed process."""

    def interrupted(*given: Any) -> Any:
        monitel.emit("inner")
        return new_box(*given)

    monkeypatch.setattr("monitel_otlp.black_box.box.new_box", interrupted)
    pipeline = start(export_interval=3600)
    monitel.emit("outer")
    monitel.emit("later")
    assert ["later", "outer"] == sorted(set(event_names(contents())) - {"inner"})
    assert pipeline.shutdown()
    assert ["inner", "later", "outer"] == sorted(receiver.record_names())
    assert [] == boxes()


def test_stat_that_is_destructed_during_a_cut_is_in_it(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the queue was encoded for the cut: its window is queued, and its samples may be an hour old."""
    finished, hand_over = Recorder._finished_parts, Recorder._hand_over
    held, seen = [monitel.Stat("loss", [monitel.COUNT], 3600.0)], list[int]()
    held[0].add(1)

    def interrupted(self: Recorder) -> Any:
        held.clear()
        return finished(self)

    def observed(self: Recorder, requests: Any) -> None:
        seen.extend([samples(contents(), "loss")] if boxes() else [])
        hand_over(self, requests)

    monkeypatch.setattr(Recorder, "_finished_parts", interrupted)
    monkeypatch.setattr(Recorder, "_hand_over", observed)
    monkeypatch.setattr("monitel_otlp.black_box.recorder.INTERVAL", 0.1)
    start(export_interval=3600)
    wait_until(lambda: len(seen) >= 2, "two cuts")
    assert [1, 1] == seen[:2]


def wrong(*_arguments: object) -> Any:
    """Fail as a broken part would."""
    raise RuntimeError("broken")


@pytest.mark.parametrize("part", ["open_windows", "Cut"])
def test_broken_cut_loses_no_request(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The box is switched off with one warning, and everything is delivered."""
    monkeypatch.setattr(f"monitel_otlp.black_box.recorder.{part}", wrong)
    pipeline = start(export_interval=3600)
    monitel.emit("event")
    monitel.Stat("loss", [monitel.COUNT], 3600.0).add(1)
    monitel.flush()
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] == receiver.record_names()
    assert [1] == receiver.values("loss.count")
    assert 1 == sum("black box" in record.message for record in caplog.records)
    assert [] == boxes()
