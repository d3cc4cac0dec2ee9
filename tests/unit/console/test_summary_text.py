"""The summary of monitel run: its text, and the folder of a run with complete files of this user only."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.made_processes import LATE, S, ended, late_ranks, owner_of, totals

from monitel.console import report
from monitel.console.summary import print_summary, summary_lines, with_cause
from monitel.runs.ended import ONLY, encode, read_ends, write_end
from monitel.runs.history import RunTime
from monitel.runs.process import JobName, Process, State, Total
from monitel.text import Screen, columns_of
from monitel_otlp import Account

RUN_TIME = RunTime("run-7", {"startup": 10 * S, "step": 80 * S, "data": 10 * S}, 1, 100 * S)


def text(reports: list[Process], screen: Screen | None = None, problems: tuple[str, ...] = ()) -> str:
    return "\n".join(summary_lines(reports, problems, screen or Screen()))


def row(label: str, reports: list[Process]) -> str:
    """Return a row of the summary in one line, without its label; empty if there is none."""
    lines = summary_lines(reports, (), Screen(1000))
    found = [line for line in lines if line.startswith(f"  {label} ")]
    return found[0].removeprefix(f"  {label}").strip() if found else ""


def test_spool_that_was_delivered_meanwhile_is_exported(tmp_path: Path) -> None:
    ranks = [
        ended(rank, spool=f"{tmp_path}/{rank}", stored=True, accounts={"metrics": Account(9, 5, 4)})
        for rank in range(3)
    ]
    for rank in (0, 1):
        (tmp_path / f"{rank}").mkdir()
    assert f"8 items, deliver with: monitel replay {tmp_path} --endpoint http://HOST:4318" == row("on disk", ranks)
    assert "19 windows and numbers, 0 events" == row("exported", ranks)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], "monitel run: nothing was recorded"),
        (
            [ended(accounts={"logs": Account(2, 2)})],
            "monitel run: no training steps; call monitel.set_step(), or monitel.torch.instrument()\n  exp",
        ),
        ([ended(made=100, skipped=10)], "monitel run: train, run run-7, 100 steps (10 skipped)"),
        (
            [ended(rank, made=9 + rank, step_time=Total(8, 4.0 - rank), world_size=2) for rank in range(2)],
            "monitel run: train, run run-7, 2 ranks, 9 to 10 steps, 2.33 steps/s",
        ),
        (
            [
                ended(rank, attempt=rank, made=5 * (rank < 2), status="failed", owner=owner_of(rank))
                for rank in range(3)
            ],
            "monitel run: train, run run-7, 3 attempts, 5 steps in attempt 1\n  verdict   failed: rank 2",
        ),
    ],
)
def test_beginning_of_the_summary(reports: list[Process], expected: str) -> None:
    """A program that has recorded nothing gets one short line."""
    assert expected == text(reports, Screen(200))[: len(expected)]
    if not reports:
        assert expected == text(reports)


def test_processes_that_still_run(tmp_path: Path) -> None:
    """The summary counts and names processes, unless they have stored their end meanwhile."""
    write_end(tmp_path, process := ended(made=100))
    running = [process.key, "7-1", "8-1"]
    for keys, header, pids in ((running, "train, run run-7, 100 steps", "es 7, 8"), (["9-1"], "", " 9")):
        print_summary(tmp_path, stream := io.StringIO(), running=keys)
        assert header in stream.getvalue()
        assert f"  running   process{pids}, after the end of the command; see monitel top" in stream.getvalue()
    alone = "\n".join(summary_lines((), (), Screen(), running=["9"]))
    assert alone.startswith("monitel run: no recorded process has ended\n  running   process 9, after")


def test_earlier_runs_of_a_process_are_listed() -> None:
    runs = [ended(made=9, job=JobName("", "sweep", f"run-{number}"), before_ns=number) for number in range(3)]
    runs[1] = replace(runs[1], status="failed", exception=("ValueError", "no data", "train.py:7"))
    runs[0] = replace(runs[0], job=JobName("", "", ""))
    found = summary_lines([runs[2].after(runs[1].after(runs[0]))], (), Screen(200))
    assert "monitel run: sweep, run run-2, 9 steps" == found[0]
    at = found.index("  earlier   run run-1 failed: ValueError: no data (train.py:7)")
    assert "            a run of 9 steps completed" == found[at + 1]


def test_long_lists_are_shortened() -> None:
    dead = [
        ended(rank, job=JobName("", f"job {job}"), attempt=attempt, death="killed by SIGKILL", status="", made=9)
        for job in range(9)
        for attempt in range(3)
        for rank in range(64)
    ]
    dead = [replace(each, owner=owner_of(number)) for number, each in enumerate(dead)]
    failed = [
        ended(rank, job=JobName("", "failing"), attempt=attempt, status="failed", owner=owner_of(rank, f"f{attempt}"))
        for attempt in range(8)
        for rank in range(64)
    ]
    lines = text([*failed, *dead]).splitlines()
    assert len(lines) < 45
    assert "            and 189 more" in lines
    assert "  ended     ranks 0-63 failed in attempt 7" == lines[2]


@given(st.integers(20, 80))
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    """Only a word that is longer, such as a path, or columns that belong together, may be."""
    ranks = late_ranks(world_size=9, step=1, status="failed")
    ranks[0] = replace(ranks[0], run_time=RUN_TIME, death="killed by SIGKILL", step_age_ns=S, observed=True)
    lines = summary_lines(ranks, ["the report x is damaged"], Screen(width))
    assert [] == [line for line in lines if columns_of(line) > max(width, 24)]


def test_control_characters_are_printed_as_escapes() -> None:
    evil = "\x1b]0;x\x07\n"
    accounts = {"logs": Account(1, 1, dropped={evil: 1})}
    process, *_ = late_ranks(job=JobName(evil, evil), death=evil, spool=f"/{evil}", stored=True, accounts=accounts)
    found = text([process, ended(1, status=evil)], problems=(evil,))
    assert all(each == "\n" or each.isprintable() for each in found)
    assert text([process]).count("\n") < 12


def equal_ranks(**fields: Any) -> list[Process]:
    return [replace(each, stages=totals({**LATE[0], "sync": 0})) for each in late_ranks(**fields)]


def test_forked_child_does_not_hide_the_death_of_its_rank(tmp_path: Path) -> None:
    """The child has the rank and the last step of its parent, has made no steps, and ends later."""
    ranks, spool = equal_ranks(), tmp_path / "a spool"
    spool.mkdir()
    killed: dict[str, Any] = {"death": "killed by SIGKILL", "status": "", "step_age_ns": S // 2, "observed": True}
    ranks[1] = replace(ranks[1], state=State.DEAD, step=200, spool=str(spool), **killed)
    child = ended(1, step=None, seen_ns=ranks[1].seen_ns + S, owner=owner_of(101, "77"))
    assert "dead: rank 1 killed by SIGKILL at step 200" == row("verdict", [*ranks, child])
    died = f"rank 1 killed by SIGKILL at step 200, 500 ms after its last step; monitel autopsy '{spool}'"
    assert died == row("died", [*ranks, child])


def test_exception_that_ended_a_rank_is_named() -> None:
    """With its line, in the verdict and beside the rank; ranks that ended alike are one line. A long text is cut."""
    error = ("RuntimeError", "mat1 and mat2 do not fit\n(3x4 and 5x6)", "train.py:30")
    ranks = equal_ranks(step=150)
    ranks[1] = replace(ranks[1], status="failed", exception=error, seen_ns=ranks[1].seen_ns - 10 * S)
    ranks[0], ranks[2] = (replace(each, status="failed", exception=("ConnectionError", "", "")) for each in ranks[:3:2])
    ranks[3] = replace(ranks[3], status="preempted")
    words = "RuntimeError: mat1 and mat2 do not fit (train.py:30)"
    assert f"failed: ranks 0-2 failed at step 150: {words}, rank 1 first" == row("verdict", ranks)
    assert f"rank 1: {words}" == row("ended", ranks)
    lines = ["            ranks 0 and 2: ConnectionError", "            rank 3 preempted"]
    assert lines == [line for line in text(ranks).splitlines() if line in lines]
    ranks[1] = replace(ranks[1], exception=("OutOfMemoryError", "no memory " * 99, "train.py:30"))
    assert row("verdict", ranks).endswith(" no memory (train.py:30), rank 1 first")


@pytest.mark.parametrize(("later_s", "rank"), [(1, 1), (60, 0)])
def test_exception_about_the_end_of_a_peer_is_not_the_first_one(later_s: int, rank: int) -> None:
    """A parent sees the end of a rank after the others have lost their connections, but not a minute later."""
    ranks = [ended(each, made=150, step=150, seen_ns=1000 * S) for each in range(2)]
    lost = ("RuntimeError", "[tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2249.", "train.py:30")
    ranks[0] = replace(ranks[0], status="failed", exception=lost)
    died: dict[str, Any] = {"state": State.DEAD, "death": "killed by SIGSEGV", "status": ""}
    ranks[1] = replace(ranks[1], **died, seen_ns=(1000 + later_s) * S)
    found = row("verdict", ranks)
    assert f" rank {rank} " in found
    assert found.endswith("; 1 more ended after it")


def test_killed_rank_shows_where_it_was_in_the_last_second() -> None:
    """The innermost line of the program, not that of a package; of a crash, in the thread that crashed."""

    def stack(title: str, *places: str) -> str:
        return "".join([f"{title} (most recent call first):\n", *(f'  File "{each}\n' for each in places)])

    own, package = 'train.py", line 12 in load', '/lib/python3.11/site-packages/torch/x.py", line 7 in wait'
    last = stack("Main thread in the last second", package, own, 'train.py", line 90 in <module>')
    others = f"Fatal Python error: Segmentation fault\n\n{stack('Thread 0x7', package)}\n"
    crash = stack("Current thread 0x8", '/home/me/src/monitel/process/sigterm.py", line 195 in _watch', own)
    place = ", in train.py:12 in load"
    for stacks, words in ((last, place), (f"{others}{crash}\n{others}", place), (others, "")):
        died = row("died", [ended(3, made=9, step=9, death="killed by SIGSEGV", stacks=stacks)])
        assert died.startswith(f"rank 3 killed by SIGSEGV at step 9{words}; ")


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "failed: rank 0 failed at step 30: exit status 3"),
        ({"status": "failed"}, "failed: rank 0 failed at step 30: exit status 3"),
        ({"status": "failed", "exception": ("E", "x", "")}, "failed: rank 0 failed at step 30: E: x"),
        ({"status": "preempted", "step_age_ns": 0}, "unknown: "),
    ],
)
def test_exit_status_other_than_0_is_a_failure(fields: dict[str, Any], verdict: str) -> None:
    """Whatever the process has said itself: it has completed its run, and then called ``os._exit(3)``."""
    process = ended(0, made=30, step=30, **fields)
    seen = with_cause(process, ("ended with exit code 3 without a shutdown", process.seen_ns))
    assert row("verdict", [seen]).startswith(verdict)
    assert process == with_cause(process, ("ended with exit code 0 without a shutdown", process.seen_ns))


def test_helpers_give_no_verdict() -> None:
    """A Pool ends its workers by SIGTERM; a worker that was killed for another reason is in a row, and no more."""
    main = ended(made=30, step=30, step_time=Total(29, 2.9), activities={"step": 3 * S})
    fields: dict[str, Any] = {"parent": main.key, "status": "", "step": None}
    helper = ended(owner=owner_of(7), pid=7, death="killed by SIGTERM", **fields)
    assert "healthy: 10 steps/s, 0 % waiting for data" == row("verdict", [main, helper])
    assert "" == row("died", [main, helper])
    trains = replace(
        main, owner=owner_of(9), pid=9, parent=main.key, death="killed by SIGTERM", status="", state=State.DEAD
    )
    assert "healthy: 10 steps/s, 0 % waiting for data" == row("verdict", [replace(main, made=0, step=None), trains])
    assert "dead" not in text([replace(main, made=0, step=None), replace(helper, step=None)])
    killed = ended(owner=owner_of(8), pid=8, death="killed by SIGKILL", **fields)
    assert row("verdict", [main, killed]).startswith("healthy: ")
    assert row("died", [main, killed]).startswith("process 8 killed by SIGKILL; ")


def test_damaged_reports_do_not_hide_the_others(tmp_path: Path) -> None:
    """Each has one message; links are not followed, and nothing raises with a closed stream."""
    write_end(tmp_path, ended(3))
    (tmp_path / "report-1-1-00.json").write_bytes(b"{")
    (tmp_path / "report-2-1-00.json").write_bytes(b"")
    secret = tmp_path / "secret"
    secret.write_bytes(encode(ended(2)))
    (tmp_path / "report-3-1-00.json").symlink_to(secret)
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / ".a1-report-5-1-00.json").write_bytes(b"unfinished")
    found, problems = read_ends(tmp_path)
    assert ([3], 3) == ([each.rank for each in found], len(problems))
    assert all(f"report-{number}-" in problem for number, problem in enumerate(problems, 1))
    print_summary(tmp_path, stream := io.StringIO())
    assert "  missing   the report report-1-1-00.json is damaged (and 2 more)" in stream.getvalue()
    stream.close()
    print_summary(tmp_path, stream)
    print_summary(tmp_path / "missing", io.StringIO())


def test_pipelines_of_one_process_are_added_up(tmp_path: Path) -> None:
    """The totals of series and the items begin again with each pipeline; counters, steps and the ledger do not."""
    (spool := tmp_path / "first").mkdir()
    first: dict[str, Any] = {"made": 50, "step": 50, "step_time": Total(49, 4.9), "activities": {"step": 5}}
    last: dict[str, Any] = {"made": 200, "step": 200, "step_time": Total(150, 15.1), "activities": {"step": 20}}
    accounts = {"metrics": Account(110, delivered=70, on_disk=10, dropped={"queue_full": 30})}
    stages = totals({"data": 10}, cycles=50)
    write_end(tmp_path, ended(1, seen_ns=1, spool=str(spool), accounts=accounts, stages=stages, first_step=1, **first))
    last |= {"owner": owner_of(101), "pid": 101, "status": "failed"}  # of an unknown rank
    accounts, stages = {"metrics": Account(100, delivered=100)}, totals({"data": 30}, cycles=150)
    write_end(tmp_path, ended(seen_ns=2, spool="/second", accounts=accounts, stages=stages, **last))
    ([process], _) = read_ends(tmp_path)
    expected = {**last, "rank": 1, "first_step": 1, "step_time": Total(199, 20.0)}
    assert expected == {name: getattr(process, name) for name in expected}
    [stage] = process.stages.values()
    assert 200 == stage.count
    assert pytest.approx(50 * 0.01 + 150 * 0.03) == stage.sum
    lines = [line.strip() for line in summary_lines([process], (), Screen(1000))]
    assert [
        "exported  170 windows and numbers, 0 events",
        f"on disk   10 items, deliver with: monitel replay {tmp_path} --endpoint http://HOST:4318",
        "lost      30 items (queue_full 30)",
    ] == lines[-3:]


def test_containers_that_start_together_have_an_end_each(tmp_path: Path) -> None:
    """The first process of each has the id 1, and they may start within one tick. A process is stored once."""
    for rank in (0, 1, 1):
        write_end(tmp_path, ended(rank, owner=owner_of(1)._replace(namespace=f"pid:[{rank}]")), ONLY)
    assert {0, 1} == {each.rank for each in read_ends(tmp_path)[0]}
    assert 2 == len([*tmp_path.iterdir()])
    others = [replace(each, rank=None, host=f"host-{each.rank}", made=30) for each in read_ends(tmp_path)[0]]
    assert 2 == str(summary_lines(others, (), Screen(200))).count("30 steps")  # not two attempts of one job


def test_report_has_ranks_that_end_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a rank may have written its own report before, which has all of them."""
    write_end(tmp_path, ended(0, world_size=2))
    late, report_of = [ended(1, world_size=2)], report.report_of

    def overtaken(store: Path, *, title: str) -> str:
        text = report_of(store, title=title)
        if late:
            write_end(store, late.pop())
        return text

    monkeypatch.setattr(report, "report_of", overtaken)
    written = report.write_report(tmp_path, tmp_path / "report.html", title="two ranks").read_text()
    assert "ranks found here" not in written
