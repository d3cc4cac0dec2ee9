"""Views of a record: of a process that runs, of one that was killed, and of what it has left on the disk."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.recorded import KILLED, START, Recorded, definition, recorded, window

import monitel
from monitel.blackbox.crashes import CrashStacks
from monitel.blackbox.folder import Folder
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import claim
from monitel_otlp.autopsy.death_events import deaths_below
from monitel_otlp.autopsy.examination import examine
from monitel_otlp.autopsy.findings import State, Undelivered
from monitel_otlp.compare.telemetry import Telemetry
from monitel_otlp.discovery import find_boxes, find_spools
from monitel_otlp.export.death import Deaths, death_of
from monitel_otlp.record import read_record
from monitel_otlp.summary.box_report import box_report
from monitel_otlp.summary.report import Total
from monitel_otlp.top.box_watch import BoxWatch
from monitel_otlp.top.departures import death_in
from monitel_otlp.top.rank import RankState
from monitel_otlp.top.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monitel_otlp.autopsy.findings import Findings

LOSS, STEP_TIME = definition("loss", split="train"), definition("training.step.duration")


@pytest.fixture
def process(own_boxes: Path, tmp_path: Path) -> Iterator[Recorded]:
    """A process with two windows of the loss, of which one is closed, a number and two events."""
    with recorded(own_boxes, tmp_path / "spools") as found:
        monitel.set_step(1200)
        found.event("epoch.start", 1, epoch=1)
        found.close(LOSS, window(1, 1, 4.0, 2.0))
        found.log("learning_rate", 0.5, 2)
        found.open = [(LOSS, window(1, 2, 3.0, 1.0, at_s=10)), (STEP_TIME, window(2, 1, 0.25, 0.75))]
        found.box.sources["totals"] = lambda: [(found.number(STEP_TIME), 10, 5.0, 1, 1.0)]
        found.box.snapshot()
        yield found


def only(*paths: Path) -> Findings:
    """Return the findings about one process."""
    problems: list[str] = []
    (found,) = examine(paths, problems, stacks=False)
    assert [] == problems
    return found


def test_autopsy_shows_a_process_that_runs(process: Recorded) -> None:
    """Its names, step, activity, open windows, counters and events, and what is not delivered."""
    found = only(process.path)
    assert (State.ALIVE, "llm", 2, 1200) == (found.state, found.identity.service, found.identity.rank, found.step)
    assert ("data", "forward", ["forward"]) == (
        found.activity,
        found.stage and found.stage.name,
        [each.name for each in found.ranges],
    )
    assert {"loss": (2, 1.0), "training.step.duration": (2, 0.75)} == {
        each.name: (each.count, each.last) for each in found.windows
    }
    assert {"split": "train"} == found.windows[0].attributes
    assert {"training.samples": 9592, "training.steps": 300, "training.time": 80.0} == {
        each.name: each.value for each in found.counters
    }
    assert [("epoch.start", {"epoch": 1}), ("run.log", {"learning_rate": 0.5})] == [
        (each.name, each.attributes) for each in found.events
    ]
    assert Undelivered(items=2, events=2, windows=2, samples=4) == found.undelivered


def test_what_a_backend_has_is_not_shown_as_left(process: Recorded) -> None:
    """A window that was closed and delivered after the snapshot is not open."""
    process.close(*process.open[0])
    for journal in ("metrics", "logs"):
        process.settle(journal)
    found = only(process.path)
    assert Undelivered(windows=1, samples=2) == found.undelivered
    assert ["training.step.duration"] == [each.name for each in found.windows]
    assert [] == found.events


def test_autopsy_shows_the_last_second_of_a_killed_process(process: Recorded) -> None:
    """With the stack of its main thread, unless there are those of a crash."""
    path = process.killed()
    found = only(path)
    assert (State.DEAD, False, 4194399, 1200) == (found.state, found.replaced, found.identity.pid, found.step)
    assert "test_record.py" in found.stacks
    (path / "stacks").write_text("Fatal\nThread 0x01 (most recent call first):\n")
    assert "Fatal" == only(path).stacks.split("\n")[0]


def test_death_is_the_same_before_and_after_a_collector_has_ended_the_record(
    process: Recorded, own_boxes: Path
) -> None:
    """Then the box is read like a spool, in place or moved to the disk."""
    found = only(process.killed())
    assert [process.path, own_boxes / KILLED] == sorted(find_boxes(own_boxes).readable, reverse=True)
    dead = claim(own_boxes, process.box.spool, KILLED)
    assert dead is not None
    with closing(BoxWatch(own_boxes / KILLED)) as watch:
        event = death_of(watch.read(), Deaths()).event()
        assert (1200, event.attributes["code.stacktrace"]) == (death_in(watch).doing.step, found.stacks)
    dead.end({"logs": [(EVENT, tuple(event))]})
    assert ([own_boxes / KILLED], [process.path]) == (find_boxes(own_boxes).ended, find_boxes(own_boxes).readable)
    (in_place,) = deaths_below(own_boxes / KILLED, [])
    dead.move()
    dead.close()
    assert process.box.spool is not None
    assert [process.box.spool / KILLED] == find_spools(process.box.spool).folders
    (on_disk,) = deaths_below(process.box.spool, [])
    for each in (in_place, on_disk):
        assert (found.step, found.activity, found.stacks) == (each.step, each.activity, each.stacks)
        assert (4194399, "llm", State.DEAD) == (each.identity.pid, each.identity.service, each.state)
        assert ["process.died"] == [event.name for event in each.events]


def test_definitions_move_with_the_items_that_need_them(process: Recorded, own_boxes: Path) -> None:
    """A process has a spool folder already, and has defined more series since it was written."""
    process.box.tend_disk(0.0)
    process.close(definition("later"), window(7, 1, 1.0))
    process.killed()
    dead = claim(own_boxes, process.box.spool, KILLED)
    assert dead is not None
    dead.end({})
    dead.move()
    dead.close()
    assert process.box.spool is not None
    with closing(Folder.open(process.box.spool / KILLED)) as spool:
        assert ["loss", "later"] == [each.series.name for each in read_record(spool).windows]


def test_report_has_each_window_once(process: Recorded) -> None:
    """Totals up to the snapshot, windows that are open, and those that were closed since then."""
    process.close(*process.open[1])
    process.close(STEP_TIME, window(2, 2, 0.5, at_s=10))
    with closing(BoxWatch(process.path)) as watch:
        report = box_report(watch.read(), None, process.path)
    assert Total(13, 6.5, 3, 2.25) == report.step_time
    assert (300, 1, 1199, {"step": 80 * 10**9}) == (
        report.steps,
        report.first_step,
        report.last_step,
        report.activities,
    )
    assert {"metrics": 5, "logs": 2} == {signal: each.on_disk for signal, each in report.accounts.items()}


def test_top_reads_what_is_new(process: Recorded) -> None:
    """The numbers and the last event of each snapshot."""
    watch = BoxWatch(process.path)
    watch.refresh()
    assert ("loss", 1.0) == watch.numbers.value(None)
    assert ("learning_rate", 0.5) == watch.numbers.value("learning_rate")
    assert watch.event is not None
    assert "epoch.start" == watch.event.name
    assert (1200, 7, True) == (watch.page.step, watch.thread, watch.is_alive())
    process.event("epoch.end", 20)
    process.open = [(LOSS, window(1, 3, 9.0, at_s=20))]
    process.log("rate", 8.0, 21)
    process.box.snapshot()
    watch.refresh()
    assert [("loss", 9.0), ("rate", 8.0)] == [watch.numbers.value(name) for name in (None, "rate")]
    assert "epoch.end" == watch.event.name
    life = watch.history.life
    assert life is not None
    assert 300 == life.steps
    watch.close()


def test_compare_adds_what_is_in_the_box_and_on_the_disk(process: Recorded) -> None:
    """Closed windows that were moved, later ones, open windows, logged numbers, counters and the configuration."""
    process.event("run.config", 3, body={"optimizer": {"lr": 0.25}})
    process.box.tend_disk(0.0)
    process.close(*process.open[0])
    problems: list[str] = []
    found = Telemetry(lambda each: each.run == "run-7", problems)
    found.add_box(process.path)
    (known,) = found.processes
    loss = (("split", "train"),)
    assert (4, 10.0, 2.0) == (
        known.totals["loss.count", loss][1].value,
        known.totals["loss.sum", loss][1].value,
        known.gauges["loss.mean", loss][1].value,
    )
    assert (0.5, 9592) == (known.gauges["learning_rate", ()][1].value, known.totals["training.samples", ()][1].value)
    assert ({"optimizer.lr": 0.25}, {"step": 80.0}, 1200) == (
        known.config,
        {name: seconds for name, (_, seconds) in known.activities.items()},
        known.step,
    )
    assert (True, []) == (known.alive, problems)


def test_top_follows_a_record_to_the_disk(process: Recorded, own_boxes: Path) -> None:
    """A killed process stays with its death when a collector has ended its record, and has moved it."""
    process.killed()
    ranks = Ranks([str(own_boxes)])

    def states() -> dict[int | None, tuple[RankState, int | None, str]]:
        return {rank.pid: (rank.state, rank.step, rank.activity) for rank in ranks.look().ranks}

    own, dead = (RankState.ALIVE, 1200, "data"), (RankState.DEAD, 1200, "data")
    assert {os.getpid(): own, 4194399: dead} == states()
    taken = claim(own_boxes, process.box.spool, KILLED)
    assert taken is not None
    with closing(BoxWatch(own_boxes / KILLED)) as watch:
        taken.end({"logs": [(EVENT, tuple(death_of(watch.read(), Deaths()).event()))]})
    assert {os.getpid(): own, 4194399: dead} == states()
    taken.move()
    taken.close()
    assert {os.getpid(): own, 4194399: dead} == states()
    ranks.close()


def test_process_answers_with_its_present_stacks(process: Recorded) -> None:
    """Once a second, as long as there is a box; a crash would write into the same folder."""
    crashes = CrashStacks(process.box)
    process.box.start()
    (found,) = examine([process.path], [])
    assert "[MainThread]" in found.stacks
    assert not {"stacks-wanted", "stacks"} & {path.name for path in process.path.iterdir()}
    crashes.close()
    assert [] == process.box.flushes


@pytest.mark.parametrize(
    ("file", "reason"), [("names", "names is damaged"), ("state", "its values are not those of a black box")]
)
def test_record_that_cannot_be_read_is_a_problem(process: Recorded, file: str, reason: str) -> None:
    """The problem has a reason without the content of the record."""
    path = process.killed()
    if file == "names":
        (path / file).write_bytes(b"damaged names")
    else:
        (path / file).rename(path / "kept")
        process.box.sources["totals"] = lambda: [("no number",)]
        process.box.open_windows = lambda: (b"short", (1,))
        process.box.snapshot()
        (path / file).write_bytes((process.path / file).read_bytes())
    problems: list[str] = []
    found = examine([path], problems, stacks=False)
    assert ([], 1) == (found, len(problems))
    assert reason in problems[0]
    assert str(START) not in problems[0]
