"""The report for a person: its lines, their width, and hostile names."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.known_processes import NOW, SECOND, STACKS, dead_process, rank_of, record_of

from monitel.blackbox.activity import Stage, Wait
from monitel.console.autopsy import process_lines
from monitel.console.process import EXEC, EXITED, JobName, PastEvent, State
from monitel.console.text import Screen, columns_of

if TYPE_CHECKING:
    from monitel.console.process import Process

HOSTILE = "\x1b[31mevil\x07\r\n\u202e\x9b2J loss 损失函数"


pytestmark = pytest.mark.usefixtures("utc")


def text(found: Process, screen: Screen | None = None, *, complete: bool = False) -> str:
    """Return the report."""
    return "\n".join(process_lines(found, screen or Screen(), NOW, complete=complete))


def test_report_of_a_dead_process() -> None:
    """Every finding is in the report, with its unit."""
    expected = """\
rank 2 of 4, process 31337, host n04, llm, run run-7, attempt 1
state          dead: killed by SIGSEGV; last sign of life at 2026-01-02
               04:04:05, 56 min 40 s ago
since          2026-01-02 03:04:05, 1 h of telemetry
step           1,199, set 4 s before the last sign of life, 8.25 steps/s
activity       data for 3 s
stage          forward for 2 s, waiting for other ranks
waits          all_reduce for 41 s
               and 2 more
open ranges    forward for 5 s
               attention for 1 s
counters       training.samples 9,592
not delivered  120 items, 14 events, 2 open windows with 8 samples

open windows                count  mean  last  min  max
gradient.norm{split=train}      4   2.5     2    1    4
train.loss{split=train}         4   2.5     2    1    4

last events
03:04:06 INFO  epoch.start epoch=1 rate=0.5

stacks
Fatal

Thread 0x01 (most recent call first):
  File "train.py", line 12 in <module>"""
    assert expected == text(dead_process())


def test_thread_that_crashed_comes_first() -> None:
    """Behind the line about the signal; faulthandler writes it in the place that it has among the threads."""
    stacks = (
        "Fatal error\n\nThread 0x01 (most):\n  one\n\nCurrent thread 0x02 (most):\n  two\n\nThread 0x03:\n  three\n"
    )
    shown = text(replace(dead_process(), stacks=stacks))
    expected = (
        "Fatal error\n\nCurrent thread 0x02 (most):\n  two\n\nThread 0x01 (most):\n  one\n\nThread 0x03:\n  three"
    )
    assert shown.endswith(expected)


def test_time_by_activity_is_one_line() -> None:
    """The counters of the ledger, the largest first."""
    times = {"data": 31_332_000_000, "startup": 800_000_000, "step": 3653 * SECOND}
    shown = text(dead_process(activities=times, record=record_of(counters={"training.time": 80.0})))
    assert "time           step 1 h 1 min, data 31.3 s, startup 800 ms\n" in shown
    assert "counters" not in shown


def test_report_of_a_live_process_has_the_stacks_of_the_application() -> None:
    """The threads of monitel are shown only with everything."""
    found = rank_of(1, stacks=STACKS)
    shown = text(found)
    assert "state          alive\n" in shown
    assert "stacks now\nThread 0x00007f0000000001 [MainThread]" in shown
    assert "loader.py" in shown
    assert "box.py" not in shown
    assert shown.endswith("and 1 thread of monitel: use --all")
    complete = text(found, complete=True)
    assert "box.py" in complete
    assert "--all" not in complete


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"death": ""}, "dead: cause unknown, as after SIGKILL or by the OOM killer; last sign"),
        ({"state": State.ENDED, "death": EXEC}, "state          replaced by exec; last sign of life at"),
        ({"state": State.ENDED, "death": f"{EXITED}there"}, "state          ended with exit code 0 there; last sign"),
        ({"state": State.ENDED, "death": "", "status": "completed"}, "state          ended: completed; last sign of"),
        ({"state": State.ENDED, "death": ""}, "state          ended; last sign of life at"),
        ({"seen_ns": NOW + 60 * SECOND}, "ahead of the clock here"),
        ({"rate": 12345.6}, ", 12,346 steps/s"),
    ],
)
def test_unusual_findings_are_in_words(changes: dict[str, Any], expected: str) -> None:
    """A finding that is missing or impossible is described."""
    assert expected in text(replace(dead_process(), **changes), Screen(width=400))


def test_long_lists_are_cut_off_unless_everything_is_wanted() -> None:
    """Twenty of each are listed; the newest events."""
    found = replace(
        dead_process(),
        record=record_of(
            *map("stat{:03}".format, range(50)), counters={f"counter{each:03}": each for each in range(50)}
        ),
        waits=tuple(Wait(f"wait{each:03}", SECOND) for each in range(50)),
        ranges=tuple(Wait(f"range{each:03}", SECOND) for each in range(50)),
        events=[PastEvent(NOW, 9, f"event{each:03}", {}) for each in range(50)],
    )
    counts = {kind: len(re.findall(rf"\b{kind}\d\d\d\b", text(found))) for kind in ("stat", "counter", "wait", "range")}
    assert {20} == {*counts.values()}
    assert re.findall(r"event\d\d\d", text(found)) == [f"event{each:03}" for each in range(30, 50)]
    assert "30 older ones" in text(found)
    assert 2 == text(found).count("and 30 more\n"), "ranges and counters"
    assert 1 == text(found).count("and 32 more\n"), "waits, with the two that have no place in the box"
    complete = text(found, complete=True)
    for kind in ("stat", "counter", "wait", "range", "event"):
        assert 50 == len(re.findall(rf"\b{kind}\d\d\d\b", complete))


def hostile_process() -> Process:
    """Return a process in which every name is hostile."""
    record = record_of(HOSTILE, counters={HOSTILE: math.inf}, **{HOSTILE: HOSTILE})  # type: ignore[arg-type]
    record.problems.append(HOSTILE)
    return replace(
        dead_process(),
        host=HOSTILE,
        job=JobName(HOSTILE, HOSTILE, HOSTILE),
        exception=(HOSTILE, HOSTILE, HOSTILE),
        death=HOSTILE,
        activity=HOSTILE,
        stage=Stage(HOSTILE, True, 3),
        waits=(Wait(HOSTILE * 9, SECOND),),
        ranges=(Wait(HOSTILE, SECOND),),
        record=record,
        events=[PastEvent(-1, 99, HOSTILE, {HOSTILE: [HOSTILE, math.nan]})],
        stacks=f"{HOSTILE}\n  File {HOSTILE}",
    )


@pytest.mark.parametrize(("width", "complete"), [(20, False), (79, True)])
def test_hostile_names_cannot_control_the_terminal(width: int, complete: bool) -> None:
    """There is no control character, and no line is wider than the screen, wide characters included."""
    shown = text(hostile_process(), Screen(width=width, terminal=True), complete=complete)
    assert all(each.isprintable() for each in shown.replace("\n", ""))
    assert r"\x1b[31mevil\x07" in shown.replace("\n", "")
    if not complete:
        assert width >= max(map(columns_of, shown.split("\n")))
