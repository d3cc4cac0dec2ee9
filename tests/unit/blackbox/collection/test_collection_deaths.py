"""The event ``process.died``: its attributes describe the death of a process."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import needs_c
from tests.unit.blackbox.collection.dead_boxes import (
    SPOOL,
    cut_of,
    dead_process,
    make_box,
    spooled_deaths,
    write_file,
)
from tests.unit.blackbox.collection.killed_jobs import replay, run_killed

from monitel.context_page import Context
from monitel_otlp.autopsy import box_findings
from monitel_otlp.black_box.contents import read_box
from monitel_otlp.boxes.layout import STACKS
from monitel_otlp.collection import death, kernel_log
from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.collection.death import Deaths, End
from monitel_otlp.spool.folder import Folder

if TYPE_CHECKING:
    from tests.support.receiver import Receiver

BUSY = """\
import threading
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0, spans=True, span_steps=1)
wait_for_cut()
monitel.set_step(6)
monitel.set_step(7)
def wait():
    with monitel.WaitCounter("rendezvous").guard():
        threading.Event().wait()
threading.Thread(target=wait, daemon=True).start()
range_of = monitel.profiler.record_function
with monitel.activity("evaluation"), range_of("outer"), range_of("inner"):
    time.sleep(0.3)
    kill()
"""


def crash_line(seconds_ago: int = 0) -> bytes:
    """Return the first line of a file of stacks."""
    seconds, rest = divmod(time.time_ns() - seconds_ago * 10**9, 10**9)
    return b"fatal signal 7 (SIGBUS), code 2, address 0x10, thread 7, time %d.%09d\n" % (seconds, rest)


def deaths_of(boxes: Path, deaths: Deaths | None = None) -> list[dict[str, Any]]:
    """Collect the boxes in a folder, and return the attributes of the deaths."""
    collect_boxes(boxes, fallback=Path("fallback"), deaths=deaths)
    return spooled_deaths(Path("runs"))


def test_event_describes_the_activity_of_the_process(tmp_path: Path, receiver: Receiver) -> None:
    """Last step and its age, waits, ranges and activity, at the last sign of life."""
    before = time.time_ns()
    pid = run_killed(tmp_path, BUSY, receiver.url)
    replay(tmp_path / "spool", receiver.url)
    (died,) = receiver.records("process.died")
    found = died.attributes
    assert (21, "FATAL", pid, 7) == (died.severity, died.severity_text, found["process.pid"], found["training.step"])
    assert before < died.time_ns < died.observed_ns < time.time_ns()
    assert ("unknown", "heartbeat") == (found["process.exit.reason"], found["process.exit.time.source"])
    assert f"process {pid} on " in found["message"]
    assert "ended without a shutdown at step 7, 0." in found["message"]
    assert (["rendezvous"], ["outer", "inner"]) == (found["wait.keys"], found["range.names"])
    assert "evaluation" == found["training.activity"]
    ages = [found["training.step.age"], *found["wait.durations"], *found["range.durations"]]
    for age in (*ages, found["training.activity.duration"]):
        assert 0.3 <= age <= (died.time_ns - before) / 1e9
    assert {pid} == {died.resource["process.pid"]}
    assert not [name for name in found if "missing" in name]


@needs_c
@pytest.mark.parametrize(
    ("crash", "number"),
    [("os.abort()", signal.SIGABRT), ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV)],
    ids=["abort", "segmentation fault"],
)
def test_event_of_a_crash_has_the_signal_and_the_stacks(
    tmp_path: Path, receiver: Receiver, crash: str, number: int
) -> None:
    """The crash handler has written both to the box."""
    job = f"""\
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
wait_for_cut()
def deep_inside():
    {crash}
deep_inside()
"""
    run_killed(tmp_path, job, receiver.url, by=number)
    replay(tmp_path / "spool", receiver.url)
    (died,) = receiver.records("process.died")
    assert signal.Signals(number).name == died.attributes["process.exit.signal"]
    assert "signal" == died.attributes["process.exit.reason"]
    assert "in deep_inside" in died.attributes["code.stacktrace"]


@pytest.mark.parametrize(
    ("end", "expected", "words"),
    [
        (End(signal=9), {"reason": "signal", "signal": "SIGKILL"}, "killed by SIGKILL"),
        (End(signal=40), {"reason": "signal", "signal": "signal 40"}, "killed by signal 40"),
        (End(code=3), {"reason": "code", "code": 3}, "ended with exit code 3 without a shutdown"),
        (
            End(signal=9, out_of_memory=True),
            {"reason": "out_of_memory", "signal": "SIGKILL"},
            "killed by SIGKILL, because the memory was exhausted",
        ),
        (None, {"reason": "unknown"}, "ended without a shutdown"),
    ],
)
def test_event_has_the_end_that_the_parent_observed(
    own_boxes: Path, end: End | None, expected: dict[str, Any], words: str
) -> None:
    """Signal, exit code, or neither."""
    make_box(own_boxes, Path("runs", SPOOL).absolute())
    deaths = Deaths()
    deaths.add(4193999, End(code=77))
    if end is not None:
        deaths.add(4194000, end)
    (found,) = deaths_of(own_boxes, deaths)
    names = ("reason", "signal", "code")
    assert expected == {name: found[f"process.exit.{name}"] for name in names if f"process.exit.{name}" in found}
    assert f": {words}" in found["message"]


def test_time_of_the_parent_takes_precedence(own_boxes: Path) -> None:
    """The last sign of life is up to a second older."""
    now = time.time_ns()
    doing = {"step": 5, "waits": [("key", 1, 2.0)], "activity": ("data", 1.0), "stage": ("forward", True, 0.5, 7)}
    cut = cut_of(time_ns=now - 3 * 10**9, context=doing)
    make_box(own_boxes, Path("runs", SPOOL).absolute(), cut=cut)
    deaths = Deaths()
    deaths.add(4194000, End(signal=9, time_ns=now), "1")
    deaths.add(4194000, End(code=1), "another start")
    (found,) = deaths_of(own_boxes, deaths)
    assert "parent" == found["process.exit.time.source"]
    assert time.gmtime(now // 10**9)[:6] == time.strptime(found["process.exit.time"][:19], "%Y-%m-%dT%H:%M:%S")[:6]
    assert ([5.0], 4.0) == (found["wait.durations"], found["training.activity.duration"])
    assert 5 == found["training.step"]
    stage = [found[name] for name in ("training.stage", "training.stage.age", "training.stage.waits")]
    assert ["forward", 3.5, True] == stage


def test_activity_does_not_last_across_a_step(own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a step was set after the cut, the activity and the stage of the cut may be over: they do not grow."""
    now, second = time.time_ns(), 10**9
    page = Context(step=12, step_ns=9 * second, heartbeat_ns=10 * second, heartbeat_unix_ns=now)
    monkeypatch.setattr(death, "read_page", lambda _content: page)
    doing = {"activity": ("data", 1.0), "stage": ("data", False, 0.5, 7)}
    box = make_box(own_boxes, Path("runs", SPOOL).absolute(), cut=cut_of(time_ns=now - 3 * second, context=doing))
    deaths = Deaths()
    deaths.add(4194000, End(signal=9, time_ns=now), "1")
    monkeypatch.setattr(box_findings, "read_page", lambda _content: page)
    with closing(Folder.open(box)) as folder:
        shown = box_findings.findings_of(box, read_box(folder), alive=False)
    (found,) = deaths_of(own_boxes, deaths)
    assert (12, 1.0, 0.5) == tuple(
        found[name] for name in ("training.step", "training.activity.duration", "training.stage.age")
    )
    assert shown.stage is not None
    assert (second, second // 2) == (shown.activity_age_ns, shown.stage.age_ns)


def test_process_of_another_namespace_is_not_confused_with_one_of_this_one(own_boxes: Path) -> None:
    """Process ids are unique only within a namespace."""
    make_box(own_boxes, Path("runs", SPOOL).absolute(), owner=dead_process()._replace(namespace="1"))
    deaths = Deaths()
    deaths.add(4194000, End(signal=9))
    Path("runs").mkdir()
    (found,) = deaths_of(own_boxes, deaths)
    assert "unknown" == found["process.exit.reason"]


KILLED = b"3,1,%d,-;Memory cgroup out of memory: Killed process %d (python) total-vm:1kB, anon-rss:2kB\n"


@pytest.mark.parametrize(
    ("log", "end", "reason"),
    [
        (KILLED % (10**9, 4194000), None, "out_of_memory"),
        (KILLED % (10**9, 4194000), End(signal=9), "out_of_memory"),
        (KILLED % (10**9, 4194000), End(signal=11), "signal"),
        (KILLED % (10**9, 4194000), End(code=1), "code"),
        (KILLED % (10**9, 419400), None, "unknown"),
        (KILLED % (0, 4194000), None, "unknown"),  # an earlier process with this id
        (b"\xff\n" * 100, None, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_log_of_the_kernel_shows_that_memory_was_exhausted(
    own_boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, log: bytes | None, end: End | None, reason: str
) -> None:
    """The parent of such a process sees only SIGKILL."""
    if log is not None:
        (tmp_path / "kmsg").write_bytes(b"6,0,1,-;some line\n" + log + b"6,9,9,-;another line\n")
    monkeypatch.setattr(kernel_log, "_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(kernel_log, "_FIRST_NAMESPACE", dead_process().namespace)
    make_box(own_boxes, Path("runs", SPOOL).absolute())
    deaths = Deaths()
    if end is not None:
        deaths.add(4194000, end)
    (found,) = deaths_of(own_boxes, deaths)
    assert reason == found["process.exit.reason"]
    assert ("because the memory was exhausted" in found["message"]) == (reason == "out_of_memory")


def test_time_in_the_future_is_no_sign_of_life(own_boxes: Path) -> None:
    """The clock was set back, or the box is damaged."""
    make_box(own_boxes, Path("runs", SPOOL).absolute(), cut=cut_of(time_ns=2**62))
    (found,) = deaths_of(own_boxes)
    assert found["process.exit.time"][:4] == time.strftime("%Y", time.gmtime())
    assert "creation" == found["process.exit.time.source"]


def test_long_stacks_are_cut_off(own_boxes: Path) -> None:
    """Backends refuse log records that are too large."""
    box = make_box(own_boxes, Path("runs", SPOOL).absolute())
    write_file(box / STACKS, crash_line() + b"  File \xff\n" * 30_000)
    (found,) = deaths_of(own_boxes)
    assert 30_000 < len(found["code.stacktrace"]) < 40_000
    assert found["code.stacktrace"].endswith("more characters)")
    assert "SIGBUS" == found["process.exit.signal"]


@pytest.mark.parametrize("end", [None, End(time_ns=1)])
def test_crash_names_a_signal_that_the_parent_has_not_observed(own_boxes: Path, end: End | None) -> None:
    """Its time is the last sign of life."""
    box = make_box(own_boxes, Path("runs", SPOOL).absolute(), cut=cut_of(time_ns=time.time_ns() - 10**9))
    write_file(box / STACKS, crash_line())
    deaths = Deaths()
    if end is not None:
        deaths.add(4194000, end)
    (found,) = deaths_of(own_boxes, deaths)
    assert ("SIGBUS", "crash") == (found["process.exit.signal"], found["process.exit.time.source"])


def test_signal_that_the_process_has_survived_is_not_its_end(own_boxes: Path) -> None:
    """A handler of the application has returned, and the process went on."""
    box = make_box(own_boxes, Path("runs", SPOOL).absolute())
    write_file(box / STACKS, crash_line(seconds_ago=60))
    (found,) = deaths_of(own_boxes)
    assert "unknown" == found["process.exit.reason"]
    assert "code.stacktrace" not in found


def test_long_stacks_keep_the_thread_that_received_the_signal() -> None:
    """The main thread is the last one that faulthandler writes."""
    others = "".join(f"Thread {number:#x}:\n  File idle.py\n" for number in range(2000))
    last = "Current thread 0xabc:\n" + "  File train.py, line 1 in step\n" * 10
    for text in (others + last, last + others, others + last + others):
        stacks = death._shortened(text)
        assert last.rstrip() in stacks
        assert "more characters)" in stacks
        assert len(stacks) < len(text)
