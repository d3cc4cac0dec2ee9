"""Views of a record: of a process that runs, of one that was killed, and of what it has left on the disk."""

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from tests.support.inbox import DEADLINE
from tests.unit.console.recorded import DOING, KILLED, SECOND, START, Recorded, definition, record_in, recorded, window

import monitel
from monitel.blackbox.context_page import Context, own_page
from monitel.blackbox.death import Deaths, End, death_of
from monitel.blackbox.record import EVENT
from monitel.blackbox.recovery import claim
from monitel.console.job import jobs_of
from monitel.console.live import Live
from monitel.console.reader import deaths_below, read_boxes
from monitel.console.top import summary
from monitel.runs.ended import VERSION, encode, read_ends, store_death
from monitel.runs.process import Process, State, Total, doing_at, process_of
from monitel.runs.stored import load

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


def only(*paths: Path) -> Process:
    problems: list[str] = []
    (found,) = read_boxes(paths, problems, stacks=False)
    assert [] == problems
    return found


def test_what_a_backend_has_is_not_shown_as_left(process: Recorded) -> None:
    """A window that was closed and delivered after the snapshot is not open."""
    process.close(*process.open[0])
    for journal in ("metrics", "logs"):
        process.settle(journal)
    found = only(process.path)
    assert {"items": 0, "events": 0, "windows": 1, "samples": 2} == found.undelivered
    assert ["training.step.duration"] == [series.name for series, _ in found.open_windows]
    assert [] == found.events


def test_exit_without_a_shutdown_has_one_verdict(process: Recorded, own_boxes: Path) -> None:
    """``os._exit(0)`` has not failed: by the parent, which has seen the exit code, and by the event in a spool."""
    process.killed()
    deaths = Deaths()
    deaths.add(4194399, End(code=0, time_ns=START), "5")
    record = record_in(own_boxes / KILLED)
    dead = claim(own_boxes / KILLED, process.box.spool_root)
    dead.end({"logs": [(EVENT, tuple(death_of(record, deaths).event()))]})
    (by_parent,) = jobs_of([process_of(record, alive=False, deaths=deaths)])
    (by_event,) = jobs_of(deaths_below(own_boxes / KILLED, []))
    assert [by_parent.verdict.kind] * 2 == [by_event.verdict.kind, "healthy"]
    (found,) = by_event.processes
    assert 5 == found.undelivered["items"]  # a window, a number, its event, another one, and that of the death
    assert (State.ENDED, "ended with exit code 0 without a shutdown") == (found.state, found.death)
    dead.move()
    dead.close()
    (moved,) = jobs_of(deaths_below(process.spools, []))  # which has the last step, and not the number of steps
    assert moved.verdict.text.startswith("unknown: an unknown number of steps, a verdict needs 20 steps")


def test_definitions_move_with_the_items_that_need_them(process: Recorded, own_boxes: Path) -> None:
    """A process has a spool folder already, and has defined more series since it was written."""
    process.box.tend_disk(0.0)
    process.close(definition("later"), window(7, 1, 1.0))
    process.killed()
    with closing(claim(own_boxes / KILLED, process.box.spool_root)) as dead:
        dead.end({})
        dead.move()
    assert ["loss", "later"] == [each.series.name for each in record_in(process.spools / KILLED).windows]


def test_each_window_counts_once(process: Recorded) -> None:
    """Totals up to the snapshot, windows that are open, and those that were closed since then."""
    process.close(*process.open[1])
    process.close(STEP_TIME, window(2, 2, 0.5, at_s=10))
    found = process_of(record_in(process.path), alive=True)
    assert Total(13, 6.5, 3, 2.25) == found.step_time
    assert (300, 1, 1200, {"step": 80 * 10**9}) == (found.made, found.first_step, found.step, found.activities)


def test_steps_and_the_time_of_a_step_are_of_one_moment(process: Recorded) -> None:
    """Steps since the snapshot count, the time since the last step does not, in the loop or outside."""
    at_snapshot = {**DOING, "first_step": 1181, "step": 1200, "step_seconds": 40.0, "activity": ("init", 39.0)}
    timed = {"made": 20, "step_p50": 2.5}
    process.box.sources["doing"] = lambda: {**at_snapshot, **timed, "timed": sum(own_page().step_times)}
    process.box.sources["counters"] = lambda: [("training.time", {"training.activity": "step"}, 81.0)]
    process.box.sources.pop("totals")
    process.open.clear()
    process.box.snapshot()
    for since, made in (((), 20), ((1201, 1202), 22), ((1181, 1182), 24)):
        for step in since:
            monitel.set_step(step)
        record = replace(record_in(process.path), page=own_page())
        for seconds in (1, 100):
            found = doing_at(record, time.time_ns() + seconds * 10**9)
            assert made == found.made
            assert found.mean_step == pytest.approx((80 + bool(since)) / made, rel=0.01)
    at_shutdown = doing_at(replace(record, page=Context()), record.time_ns)
    assert found.usual_step is not None
    assert (2.5, True) == (at_shutdown.usual_step, found.usual_step < 1)  # the median, of the snapshot or of the page


def test_stored_end_is_the_process_of_its_record(process: Recorded, tmp_path: Path) -> None:
    """``monitel run`` keeps of a killed process what ``autopsy`` reads in its box."""
    (run := tmp_path / "run").mkdir(mode=0o700)
    killed = process.killed(run=str(run))
    found = only(killed)
    record = record_in(killed)
    assert store_death(record, death_of(record, Deaths()), tmp_path / "spools" / KILLED)
    ([stored], problems) = read_ends(run)
    assert [] == problems
    names = ("job", "owner", "rank", "step", "step_age_ns", "activity", "stage", "waits", "made", "step_time", "state")
    for name in (*names, "stages", "activities", "exception", "stacks", "seen_ns", "parent", "thread"):
        assert getattr(found, name) == getattr(stored, name), name
    on_disk = {signal: account.on_disk for signal, account in stored.accounts.items()}
    assert ("", {"metrics": 4, "logs": 3}) == (stored.death, on_disk)
    assert stored == load(Process, encode(stored), VERSION)


def test_job_that_cannot_be_read_has_no_advice_about_steps(process: Recorded) -> None:
    path = process.killed()
    (path / "names").write_bytes(b"damaged")
    (job,) = (look := Live([str(path)]).look()).jobs
    assert "1 job, 1 process: 1 unreadable" == summary(look)
    assert ["unknown: no process of the job can be read"] == [job.verdict.text]
    assert ["names is damaged: it does not describe the process"] == [each.problem for each in job.processes]


def test_status_that_comes_later_than_the_end_is_found(process: Recorded, own_boxes: Path) -> None:
    """The box vanishes first, and the event reaches the spool after a look that has not found it."""
    live = Live([str(own_boxes)])

    def row() -> Process:
        ((each,),) = (job.processes for job in live.look().jobs)
        return each

    assert State.ALIVE is row().state
    process.path.rename(own_boxes / f".{process.path.name}")  # it is removed now
    assert (State.ENDED, "", 1200) == ((ended := row()).state, ended.status, ended.step)
    at_s = round(time.time() - START / SECOND)
    process.event("run.ended", at_s, None, **{"run.status": "failed", "run.step": 1201})
    process.box.tend_disk(0.0)
    assert ("failed", 1201) == ((ended := row()).status, ended.step)


def test_event_that_moves_to_the_disk_between_two_reads_is_shown_once(process: Recorded) -> None:
    path = process.killed()
    process.box.tend_disk(0.0)
    (process.spools / process.path.name).rename(process.spools / KILLED)
    assert only(path).events == read_boxes([path], [])[0].events != []


def test_spools_are_read_side_by_side(process: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs costs one wait, not one for each process."""
    killed, all_read, entries = process.killed(), Barrier(4), Path.iterdir
    paths = [shutil.copytree(killed, process.path.with_name(f"{KILLED[:-2]}{each}")) for each in range(10, 14)]
    (process.spools / KILLED).mkdir(parents=True)

    def hang(path: Path) -> Iterator[Path]:
        all_read.wait(DEADLINE)
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", hang)
    assert [True] * 4 == [each.stored for each in read_boxes(paths, [])]
