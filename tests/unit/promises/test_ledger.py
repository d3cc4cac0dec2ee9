"""The ledger of a run adds up to 100 % over restarts, with the time between attempts and the steps made again."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checks import SetEnv

from monitel.console.ledger import ledger_lines
from monitel.console.runs import Run
from monitel.runs.history import Attempt, History, RunTime, ascending, decode, encode
from monitel.runs.shares import ledger_line, parts_of, print_last_line
from monitel.text import Screen

SECOND = 10**9
DURATIONS = st.integers(0, 10**12)


@dataclass
class Job:
    """One attempt: what really happened in it, in nanoseconds."""

    down: int  # time since the end of the attempt before
    startup: int  # time before the first step
    unknown: int  # time in steps before the first one that is known
    durations: list[int]  # time of each step, the last of which may be unfinished
    first: int  # the step at which it begins
    explicit: bool  # it sets its step itself


@dataclass
class Truth:
    startup: int = 0
    down: int = 0
    repeated: int = 0
    unknown: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, job: Job, *, first: bool) -> None:
        self.startup += job.startup
        self.down += job.down
        self.unknown += job.unknown
        if not job.explicit and not first:
            self.unknown += sum(job.durations)
            return
        if job.explicit and job.durations:
            self.repeated += sum(duration for step, duration in self.steps if step >= job.first)
            self.steps = [(step, duration) for step, duration in self.steps if step < job.first]
        self.steps += enumerate(job.durations, job.first)

    def activities(self) -> dict[str, int]:
        step = self.unknown + sum(duration for _, duration in self.steps)
        found = {"startup": self.startup, "step": step, "down": self.down, "repeated": self.repeated}
        return {name: time_ns for name, time_ns in found.items() if time_ns}


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


def histories(jobs: Sequence[Job]) -> list[History]:
    """Return the history after each attempt, as its process stores it and the next one reads it."""
    found: list[History] = []
    now_ns, earlier = 10**18, RunTime("run")
    for number, job in enumerate(jobs):
        job.down = job.down if number else 0
        before, marks = job.unknown, []
        for step, step_ns in enumerate(job.durations, job.first):
            marks.append((step, before))
            before += step_ns
        now_ns += job.down + job.startup + before
        attempt = Attempt(
            name=f"attempt {number}",
            activities={"startup": job.startup, "step": before},
            last_ns=now_ns,
            begin=job.first if job.explicit and job.durations else None,
            marks=ascending(marks),
            down_ns=job.down,
        )
        found.append(decode(encode(History(earlier, attempt))))
        earlier = found[-1].time
    return found


@given(JOBS)
def test_every_nanosecond_of_every_attempt_is_counted_once(jobs: list[Job]) -> None:
    truth = Truth()
    for number, history in enumerate(histories(jobs)):
        truth.add(jobs[number], first=number == 0)
        run = history.time
        assert truth.activities() == {name: time_ns for name, time_ns in run.activities.items() if time_ns}
        assert sum(run.activities.values()) == run.elapsed_ns == run.last_ns - run.start_ns
        assert (10**18, number + 1, history.attempt.last_ns) == (run.start_ns, run.attempts, run.last_ns)
        assert (run.goodput or 0) * run.elapsed_ns == pytest.approx(run.activities.get("step", 0))


def test_attempt_that_is_killed_right_after_its_first_step_repeats_steps_once() -> None:
    """The next attempt, which begins at the same step, repeats nothing more."""
    earlier = RunTime("", {"step": 50}, 1, line=((10, 0), (12, 50)))
    killed = History(earlier, Attempt("", {"startup": 9}, 1, begin=11)).time
    assert {"step": 25, "repeated": 25, "startup": 9} == killed.activities
    again = History(killed, Attempt("", {"startup": 9, "step": 4}, 1, begin=11, marks=((11, 0),))).time
    assert {"step": 29, "repeated": 25, "startup": 18} == again.activities


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (0, {"startup": 40, "data": 5, "step": 150}),
        (33, {"startup": 10, "data": 2, "step": 150}),
        (95, {"startup": 10, "data": 0, "step": 90}),
    ],
)
def test_overlap_of_two_attempts_is_counted_once(overlap: int, expected: dict[str, int]) -> None:
    """Time in which the earlier attempt was still alive is taken from the start of the later one; none is negative."""
    earlier = RunTime("", {"startup": 10, "step": 90}, 1, line=((0, 0), (9, 90)))
    own = {"data": 5, "step": 60, "startup": 30}
    run = History(earlier, Attempt("", own, 1000, marks=((9, 0), (10, 55)), begin=9, overlap_ns=overlap)).time
    assert (expected, 195 - overlap) == (run.activities, run.elapsed_ns)


@pytest.mark.parametrize(
    ("boot", "start", "boot_start", "expected"),
    [
        pytest.param("same", 10**18, 700, (200, 0), id="one machine, whose clock was set"),
        pytest.param("same", 1_500, 480, (0, 20), id="the processes overlapped"),
        pytest.param("other", 1_500, 9, (500, 0), id="another machine"),
        pytest.param("other", 10, 9, (0, 0), id="another machine, whose clock is behind"),
    ],
)
def test_attempts_have_no_negative_gap(boot: str, start: int, boot_start: int, expected: tuple[int, int]) -> None:
    """On one machine it is that of the clock since the boot, which nobody sets, otherwise that of the wall clock."""
    previous = Attempt("", {}, 1_000, boot="same", boot_ns=500)
    found = Attempt("", {"startup": 50}, start + 50, boot=boot, boot_ns=boot_start + 50).after(previous)
    assert expected == (found.down_ns, found.overlap_ns)


# What is printed.

#: 2 h 13 min in three attempts.
STAGES = {"data": 9, "forward": 61, "sync": 30}
LONG = {"startup": 200.0, "data": 3032.0, "step": 4600.0, "down": 100.0, "repeated": 48.0}


def made(seconds: dict[str, float], attempts: int = 1) -> RunTime:
    activities = {name: round(each * SECOND) for name, each in seconds.items()}
    return RunTime("run-7", activities, attempts, sum(activities.values()), "completed")


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 10**17), min_size=1, max_size=70))
def test_printed_shares_add_up_to_100(activities: dict[str, int]) -> None:
    """Each activity with time is a part, all parts have 100 % together, and each is its exact share, rounded."""
    parts, whole = parts_of(activities), sum(activities.values())
    assert {name: time for name, time in activities.items() if time} == {each.name: each.time_ns for each in parts}
    assert all(abs(each.time_ns * 100 - each.percent * whole) < whole for each in parts)
    assert (100 if whole else 0) == sum(each.percent for each in parts)
    shares = re.sub(r"\d+ % of the time.*", "", ledger_line(RunTime(activities=activities)))
    assert (100 if whole else 0) == sum(map(int, re.findall(r"(\d+) %", shares)))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"step": 50, "repeated": 50}, "50 % of the time went into steps that had to be repeated after a restart"),
        ({"step": 50, "down": 50}, "50 % of the time went into downtime between attempts"),
        ({"step": 60, "\x1b[2J": 40}, '40 % of the time went into the activity "\x1b[2J"'),
        ({"step": 97, "data": 2}, "98 % of the time went into steps; the largest overhead is waiting for data (2 %)"),
        ({"step": 999, "data": 1}, "100 % of the time went into steps; no overhead reaches 1 %"),
        ({"startup": 1, "evaluation": 9}, "90 % of the time went into evaluation; goodput is undefined without steps"),
    ],
)
def test_sentence_names_the_largest_overhead(seconds: dict[str, float], expected: str) -> None:
    """Time in steps is not an overhead; with 95 % in steps the sentence says so; without steps there is no goodput."""
    assert ledger_line(made(seconds)).endswith(f"; {expected}")


@pytest.mark.parametrize(
    ("status", "age", "state"),
    [
        ("failed", 700, "failed at 2026-01-02 05:17:05, 11 min 40 s ago"),
        ("", 9, "running; its last heartbeat was 9 s ago"),
        ("", 11, "killed or hung: its last heartbeat was at 2026-01-02 05:17:05, 11 s\n            ago"),
    ],
)
def test_table_has_state_attempts_and_a_row_for_each_activity(
    setenv: SetEnv, status: str, age: int, state: str
) -> None:
    """A run without a heartbeat for ten seconds does not run; what waits for other ranks is part of ``step``."""
    setenv(TZ="UTC")
    time.tzset()
    last_ns = 1_767_331_025 * SECOND
    run = replace(made(LONG, attempts=3), last_ns=last_ns, status=status, stages=STAGES)
    now_ns = last_ns + age * SECOND
    shown = Run(run, outcome=Run(run).state(now_ns))
    assert (
        f"""\
run         run-7
started     2026-01-02 03:04:05
state       {state}
attempts    3, with 1 min 40 s down and 48 s repeated
goodput     57.6 %

activity  share         time
step       58 %   1 h 17 min  ███████████████████████
data       38 %  50 min 32 s  ███████████████
startup     3 %   3 min 20 s  █
down        1 %   1 min 40 s  █
repeated   <1 %         48 s
total     100 %   2 h 13 min

38 % of the time went into waiting for data
of each step: 30 % waiting for other ranks, 9 % waiting for data""".splitlines()
        == ledger_lines(shown, Screen(), now_ns)
    )


def test_last_line_has_total_attempts_shares_and_the_largest_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps first, then the overheads by size; a share below 1 % is left out. Nothing without a step or an activity."""
    waiting, odd = "38 % of the time went into waiting for data", 'of the time went into the activity "\\x1b[2J"'
    table = [
        ({"startup": 3.0, "down": 1.0, "shutdown": 1.0}, ""),
        (LONG, f"2 h 13 min in 3 attempts (step 58 %, data 38 %, startup 3 %, down 1 %); {waiting}"),
        ({"step": 1.0, "\x1b[2J": 3.0}, f"4 s in 3 attempts (step 25 %, \\x1b[2J 75 %); 75 % {odd}"),
    ]
    for seconds, expected in table:
        print_last_line(made(seconds, attempts=3))
        assert ("", f"monitel ledger: {expected}\n" if expected else "") == capsys.readouterr()
