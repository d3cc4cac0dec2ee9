"""The times of several attempts add up, and each step that is done again is lost once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.ledger.history import MARKS, Attempt, Earlier, History, ascending, at, fold, gap, past_of, run_time
from monitel_otlp.ledger.stored import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

DURATIONS = st.integers(0, 10**12)


@dataclass
class Job:
    """One attempt: what really happened in it.

    Attributes:
        down: Nanoseconds since the end of the attempt before.
        startup: Nanoseconds before the first step.
        unknown: Nanoseconds in steps before the first one that is known.
        durations: Nanoseconds of each step, the last of which may be unfinished.
        first: The step at which it begins.
        explicit: It sets its step itself.
    """

    down: int
    startup: int
    unknown: int
    durations: list[int]
    first: int
    explicit: bool

    @property
    def productive(self) -> int:
        """Nanoseconds in steps."""
        return self.unknown + sum(self.durations)


@dataclass
class Truth:
    """The time of a run, step by step."""

    startup: int = 0
    down: int = 0
    lost: int = 0
    unknown: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, job: Job, *, first: bool) -> None:
        """Add an attempt: it makes all steps again from its own first step on."""
        self.startup += job.startup
        self.down += job.down
        self.unknown += job.unknown
        if not job.explicit and not first:
            self.unknown += sum(job.durations)
            return
        if job.explicit and job.durations:
            self.lost += sum(duration for step, duration in self.steps if step >= job.first)
            self.steps = [(step, duration) for step, duration in self.steps if step < job.first]
        self.steps += enumerate(job.durations, job.first)

    @property
    def productive(self) -> int:
        """Nanoseconds in steps that count."""
        return self.unknown + sum(duration for _, duration in self.steps)


JOBS = st.lists(
    st.builds(
        Job,
        down=DURATIONS,
        startup=DURATIONS,
        unknown=st.sampled_from([0, 0, 7]),
        durations=st.lists(DURATIONS, max_size=8),
        first=st.integers(0, 20),
        explicit=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def attempt_of(job: Job, number: int, start_ns: int) -> Attempt:
    """Return an attempt as a process stores it."""
    before, marks = job.unknown, []
    for step, duration in enumerate(job.durations, job.first):
        marks.append((step, before))
        before += duration
    return Attempt(
        name=f"attempt {number}",
        activities={"startup": job.startup, "step": job.productive},
        last_ns=start_ns + job.startup + job.productive,
        begin=job.first if job.explicit and job.durations else None,
        marks=ascending(marks),
        down_ns=job.down,
    )


def histories(jobs: Sequence[Job]) -> list[History]:
    """Return the history after each attempt, as the file held it."""
    found: list[History] = []
    now_ns, earlier = 10**18, Earlier()
    for number, job in enumerate(jobs):
        job.down = job.down if number else 0
        now_ns += job.down
        attempt = attempt_of(job, number, now_ns)
        now_ns = attempt.last_ns
        found.append(decode(encode(History("run", earlier, attempt))))
        earlier = fold(found[-1])
    return found


@given(JOBS)
def test_every_second_of_every_attempt_is_counted_once(jobs: list[Job]) -> None:
    """With any kills and resumes, productive, lost and other times are those of the steps, to the nanosecond."""
    truth = Truth()
    for number, history in enumerate(histories(jobs)):
        truth.add(jobs[number], first=number == 0)
        run = run_time(history)
        assert truth.productive == run.activities["step"]
        assert truth.lost == run.activities.get("lost", 0)
        assert truth.down == run.activities.get("down", 0)
        assert truth.startup == run.activities["startup"]
        assert sum(run.activities.values()) == run.elapsed_ns == run.last_ns - run.start_ns
        assert 10**18 == run.start_ns
        assert (number + 1, history.attempt.last_ns) == (run.attempts, run.last_ns)


@given(JOBS)
def test_counters_and_history_have_the_same_goodput(jobs: list[Job]) -> None:
    """The past that a process gets for its counters, with its own ledger, makes the goodput of the run."""
    for history in histories(jobs):
        past, own, run = past_of(history), history.attempt.activities, run_time(history)
        lost = run.activities.get("lost", 0) - history.earlier.activities.get("lost", 0)
        assert run.activities["step"] == past.productive_ns + own["step"] - lost
        assert run.elapsed_ns == past.elapsed_ns + sum(own.values())


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**12))))
def test_marks_are_bounded_and_keep_their_ends(marks: list[tuple[int, int]]) -> None:
    """Any marks become a line that rises, has at most so many marks, and keeps the first and the last one."""
    steps = sorted({step for step, _ in marks})
    rising = [(step, 10 * step) for step in steps]
    for given_marks in (marks, rising * 3, [(step, step) for step in range(3 * MARKS)]):
        line = ascending(given_marks)
        assert len(line) <= MARKS
        assert all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(line))
        assert line[:1] == tuple(given_marks[:1])
    if rising:
        assert rising[-1] == ascending(rising)[-1]


def test_time_of_steps_of_equal_length_is_exact_after_thinning() -> None:
    """A line of very many steps is thinned out, and still gives the time before any step."""
    line = ascending((step, 1000 * step) for step in range(100_001))
    assert [1000 * step for step in range(100_001)] == [at(line, step) for step in range(100_001)]


def test_step_beyond_the_line_loses_nothing() -> None:
    """An attempt that resumes at a higher step, or at the next one, makes no step again."""
    earlier = Earlier(1, {"step": 50}, ((10, 0), (11, 25), (12, 50)))
    for begin in (12, 13, 2**63 - 1):
        run = run_time(History("", earlier, Attempt("", {"step": 5}, 1, begin=begin, marks=((begin, 0),))))
        assert {"step": 55} == run.activities


def test_attempt_that_has_set_its_step_but_spent_no_time_loses_steps_once() -> None:
    """An attempt that is killed right after its first step changes the line, so the next one loses nothing more."""
    earlier = Earlier(1, {"step": 50}, ((10, 0), (12, 50)))
    killed = fold(History("", earlier, Attempt("", {"startup": 9}, 1, begin=11)))
    assert {"step": 25, "lost": 25, "startup": 9} == killed.activities
    again = fold(History("", killed, Attempt("", {"startup": 9, "step": 4}, 1, begin=11, marks=((11, 0),))))
    assert {"step": 29, "lost": 25, "startup": 18} == again.activities


def test_overlap_is_taken_from_the_start_of_the_later_attempt() -> None:
    """Time in which the earlier attempt was still alive is counted once; no activity becomes negative."""
    earlier = Earlier(1, {"startup": 10, "step": 90}, ((0, 0), (9, 90)))
    for overlap, expected in [
        (0, {"startup": 40, "data": 5, "step": 150}),
        (20, {"startup": 20, "data": 5, "step": 150}),
        (33, {"startup": 10, "data": 2, "step": 150}),
        (45, {"startup": 10, "data": 0, "step": 140}),
        (95, {"startup": 10, "data": 0, "step": 90}),
    ]:
        own = {"data": 5, "step": 60, "startup": 30}
        history = History("", earlier, Attempt("", own, 1000, marks=((9, 0), (10, 55)), begin=9, overlap_ns=overlap))
        run = run_time(history)
        assert expected == run.activities
        assert 195 - overlap == run.elapsed_ns == run.last_ns - run.start_ns
        assert run.activities["step"] == fold(history).line[-1][1]


@pytest.mark.parametrize(
    ("boot", "start", "boot_start", "elapsed", "expected"),
    [
        ("same", 1_500, 700, 50, (200, 0)),
        ("same", 10, 700, 50, (200, 0)),  # the clock was set back
        ("same", 10**18, 700, 50, (200, 0)),  # the clock was set forward
        ("same", 1_500, 480, 50, (0, 20)),  # the processes overlapped
        ("same", 1_500, 400, 50, (0, 50)),  # the file is newer than this process
        ("other", 1_500, 9, 50, (500, 0)),  # a restart of the machine, or another machine
        ("other", 980, 9, 50, (0, 20)),
        ("other", 10, 9, 50, (0, 0)),  # the clock was set back in between
        ("", 1_500, 700, 50, (500, 0)),  # a system without boot ids
    ],
)
def test_time_between_attempts_is_never_negative(
    boot: str, start: int, boot_start: int, elapsed: int, expected: tuple[int, int]
) -> None:
    """The clock since the boot is used on one machine, and otherwise the wall clock."""
    previous = Attempt("", {}, 1_000, boot="" if not boot else "same", boot_ns=500)
    assert expected == gap(previous, start_ns=start, boot=boot, boot_start_ns=boot_start, elapsed_ns=elapsed)
