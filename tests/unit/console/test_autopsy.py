"""The report about processes: for a person its lines, their width and hostile names, and for programs its JSON."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.unit.console.made_processes import START, S, alive
from tests.unit.console.recorded import definition

from monitel.blackbox.activity import Wait
from monitel.blackbox.reading import Record, Snapshot
from monitel.blackbox.record import EVENT, NUMBERS, Item
from monitel.console.as_json import report_as_json
from monitel.console.autopsy import process_lines
from monitel.console.job import jobs_of
from monitel.runs.process import EXEC, EXITED, JobName, PastEvent, Process, State
from monitel.stats.window import OpenWindow, encode
from monitel.text import Screen, columns_of
from monitel.training.activities import Stage

pytestmark = pytest.mark.usefixtures("utc")

HOSTILE = "\x1b[31mevil\x07\r\n\u202e\x9b2J loss 损失函数"
NOW = START + 7_000 * S

STACKS = """\
Thread 0x00007f0000000001 [MainThread] (most recent call first):
  File "train.py", line 12 in <module>

Current thread 0x00007f0000000002 [monitel-otlp] (most recent call first):
  File "box.py", line 3 in answer

Thread 0x00007f0000000003 [loader] (most recent call first):
  File "loader.py", line 7 in read
"""


def record_of(
    *names: str, counters: dict[str, float] | None = None, items: int = 0, events: int = 0, **attributes: Any
) -> Record:
    """Return a record with open windows of the samples 1, 2, 3, 4, of which 2 is the last one, counters and items."""
    series = [definition(name, **attributes) for name in names]
    numbers = (NOW, NOW + 60 * S, 4, 10.0, 1.0, 4.0, 2.0, 0, 1100, 1200, None, None)
    windows = [(each + 1, encode(OpenWindow(each, 0, False, NOW, *numbers))) for each in range(len(series))]
    values: dict[str, Any] = {"counters": [(name, {}, total) for name, total in (counters or {}).items()]}
    snapshot = Snapshot(NOW, 1, windows, values)
    waiting = {"metrics": [Item(1, items, NUMBERS, None)], "logs": [Item(1, events, EVENT, None)]}
    return Record(Path("/boxes/1"), [{"attributes": {}}, *map(tuple, series)], snapshot, items=waiting)


def dead_process(**changes: Any) -> Process:
    """Return a process that SIGSEGV has ended, 4 seconds after its last step."""
    fields: dict[str, Any] = {
        "box": Path("/boxes/31337"),
        "pid": 31337,
        "host": "n04",
        "job": JobName("", "llm", "run-7"),
        "rank": 2,
        "local_rank": 2,
        "world_size": 4,
        "attempt": 1,
        "state": State.DEAD,
        "started_ns": START,
        "time_ns": NOW,
        "seen_ns": START + 3_600 * S,
        "death": "killed by SIGSEGV",
        "step": 1199,
        "step_age_ns": 4 * S,
        "rate": 8.25,
        "activity": "data",
        "activity_age_ns": 3 * S,
        "activities": {"data": 31_332_000_000, "startup": 800_000_000, "step": 3653 * S},
        "stage": Stage("forward", True, 2 * S, 7),
        "waits": (Wait("all_reduce", 41 * S, 7),),
        "ranges": (Wait("forward", 5 * S), Wait("attention", S)),
        "events": [PastEvent(START + S, 9, "epoch.start", {"epoch": 1, "rate": 0.5})],
        "stacks": "Fatal\nThread 0x01 (most):\n  one\n\nCurrent thread 0x02 (most):\n  two\n\nThread 0x03:\n  3",
        "record": record_of(
            *("train.loss", "gradient.norm"),
            counters={"training.samples": 9592, "training.time": 80.0},
            items=120,
            events=14,
            split="train",
        ),
    }
    return Process(**{**fields, **changes})


def text(found: Process, screen: Screen | None = None) -> str:
    return "\n".join(process_lines(found, screen or Screen(), NOW))


def test_report_of_a_dead_process() -> None:
    """The thread that crashed comes first; faulthandler writes it in the place that it has among the threads."""
    expected = """\
rank 2 of 4, process 31337, host n04, llm, run run-7, attempt 1
state          dead: killed by SIGSEGV; last sign of life at 2026-01-02
               04:04:05, 56 min 40 s ago
since          2026-01-02 03:04:05, 1 h of telemetry
step           1,199, set 4 s before the last sign of life, 8.25 steps/s
activity       data for 3 s
stage          forward for 2 s, waiting for other ranks
waits          all_reduce for 41 s
open ranges    forward for 5 s
               attention for 1 s
time           step 1 h 1 min, data 31.3 s, startup 800 ms
counters       training.samples 9,592
not delivered  120 items, 14 events, 2 open windows with 8 samples

open windows                count  mean  last  min  max
gradient.norm{split=train}      4   2.5     2    1    4
train.loss{split=train}         4   2.5     2    1    4

last events
03:04:06 INFO  epoch.start epoch=1 rate=0.5

stacks
Fatal

Current thread 0x02 (most):
  two

Thread 0x01 (most):
  one

Thread 0x03:
  3"""
    assert expected == text(dead_process())


def test_report_of_a_live_process_has_the_stacks_of_the_application() -> None:
    shown = text(alive(1, stacks=STACKS))
    assert "state          alive\n" in shown
    assert "stacks now\nThread 0x00007f0000000001 [MainThread]" in shown
    assert [True, False] == [file in shown for file in ("loader.py", "box.py")]
    assert shown.endswith("and 1 thread of monitel")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"death": ""}, "dead: cause unknown, as after SIGKILL or by the OOM killer; last sign"),
        ({"state": State.ENDED, "death": EXEC}, "state          replaced by exec; last sign of life at"),
        ({"state": State.ENDED, "death": f"{EXITED}there"}, "state          ended with exit code 0 there; last sign"),
        ({"state": State.ENDED, "death": "", "status": "completed"}, "state          ended: completed; last sign of"),
        ({"state": State.ENDED, "death": ""}, "state          ended; last sign of life at"),
        ({"seen_ns": NOW + 60 * S}, "ahead of the clock here"),
        ({"rate": 12345.6}, ", 12,346 steps/s"),
    ],
)
def test_unusual_findings_are_in_words(changes: dict[str, Any], expected: str) -> None:
    found = dead_process(**changes)
    assert expected in text(found, Screen(400))
    assert (changes.get("death") == EXEC) == report(found)["processes"][0]["replaced_by_exec"]


def test_path_is_broken_only_where_the_screen_has_no_room() -> None:
    """Users copy the path, from a pipe or from a wide terminal, though a text has at most 80 columns."""
    path = f"/{'spool' * 20}"
    screens = Screen(), Screen(columns=120), Screen(columns=100)
    assert [True, True, False] == [path in text(dead_process(spool=path, stored=True), each) for each in screens]


def test_long_lists_are_cut_off() -> None:
    """Twenty of each are listed; the newest events."""
    names = {kind: [f"{kind}{each:03}" for each in range(50)] for kind in ("stat", "counter", "wait", "range", "event")}
    found = dead_process(
        record=record_of(*names["stat"], counters=dict.fromkeys(names["counter"], 1.0)),
        waits=tuple(Wait(each, S) for each in names["wait"]),
        ranges=tuple(Wait(each, S) for each in names["range"]),
        events=[PastEvent(NOW, 9, each, {}) for each in names["event"]],
    )
    shown = text(found)
    for kind, given in names.items():
        assert (given[30:] if kind == "event" else given[:20]) == re.findall(rf"\b{kind}\d\d\d\b", shown)
    assert (4, True) == (shown.count("and 30 more\n"), "30 older ones" in shown)


@pytest.mark.parametrize("width", [20, 79])
def test_hostile_names_cannot_control_the_terminal(width: int) -> None:
    """There is no control character, and no line is wider than the screen, wide characters included."""
    found = dead_process(
        host=HOSTILE,
        job=JobName(HOSTILE, HOSTILE, HOSTILE),
        exception=(HOSTILE, HOSTILE, HOSTILE),
        death=HOSTILE,
        activity=HOSTILE,
        stage=Stage(HOSTILE, True, 3),
        waits=(Wait(HOSTILE * 9, S),),
        ranges=(Wait(HOSTILE, S),),
        record=record_of(HOSTILE, counters={HOSTILE: math.inf}, **{HOSTILE: HOSTILE}),  # type: ignore[arg-type]
        events=[PastEvent(-1, 99, HOSTILE, {HOSTILE: [HOSTILE, math.nan]})],
        stacks=f"{HOSTILE}\n  File {HOSTILE}",
    )
    shown = text(found, Screen(width, columns=width))
    assert all(each.isprintable() for each in shown.replace("\n", ""))
    assert r"\x1b[31mevil\x07" in shown.replace("\n", "")
    assert width >= max(map(columns_of, shown.split("\n")))


def report(*processes: Process) -> Any:
    return json.loads(report_as_json(processes, jobs_of(processes), ["a problem"], NOW), parse_constant=pytest.fail)


def test_findings_are_in_the_object() -> None:
    """Times are UTC, durations seconds."""
    found = report(dead_process())
    (process,), (job,) = found.pop("processes"), found.pop("jobs")
    assert {"version": 1, "time": "2026-01-02T05:00:45.000000Z", "problems": ["a problem"]} == found
    expected = {
        "started": "2026-01-02T03:04:05.000000Z",
        "last_seen": "2026-01-02T04:04:05.000000Z",
        "activity_age_seconds": 3.0,
        "stage": {"name": "forward", "seconds": 2.0, "waits_for_ranks": True, "thread": 7},
        "waits": [{"key": "all_reduce", "seconds": 41.0, "thread": 7}],
        "not_delivered": {"items": 120, "events": 14, "windows": 2, "samples": 8},
    }
    assert (expected, [2]) == ({name: process[name] for name in expected}, job["dead"])
    window = {
        "count": 4,
        "sum": 10.0,
        "last": 2.0,
        "min": 1.0,
        "max": 4.0,
        "mean": 2.5,
        "attributes": {"split": "train"},
    }
    assert window.items() <= process["windows"][1].items()
    assert {"time", "severity", "name", "attributes"} == {*process["events"][0]}


def test_every_field_is_documented() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    found = report(alive(0, waits=(Wait("a", 2 * S),)), alive(1))
    fields = {*found, *found["processes"][0], *found["jobs"][0]}
    assert set() == {name for name in fields if f"`{name}`" not in page}
