"""The text of the summary."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.made_reports import LATE, S, late_ranks, report, totals

from monitel.blackbox.process import Owner
from monitel.console.ledger.shares import RunTime
from monitel.console.summary.lines import print_summary, summary_lines
from monitel.console.summary.report import JobName, Total
from monitel.console.summary.stored import write_report
from monitel.console.text import Screen, columns_of
from monitel_otlp import Account

if TYPE_CHECKING:
    from pathlib import Path

    from monitel.console.summary.report import Report

RUN_TIME = RunTime("run-7", {"startup": 10 * S, "step": 80 * S, "data": 10 * S}, 100 * S, 1, 0, 100 * S, ended=True)


def text(reports: list[Report], screen: Screen | None = None, problems: tuple[str, ...] = ()) -> str:
    """Return the summary as one text."""
    return "\n".join(summary_lines(reports, problems, screen or Screen()))


def row(label: str, reports: list[Report]) -> str:
    """Return a row of the summary in one line, without its label; empty if there is none."""
    lines = summary_lines(reports, (), Screen(1000))
    found = [line for line in lines if line.startswith(f"  {label} ")]
    return found[0].removeprefix(f"  {label}").strip() if found else ""


def test_summary_of_a_job() -> None:
    """Steps and rate, the ledger, the late rank, and what was exported."""
    ranks = late_ranks(accounts={"metrics": Account(recorded=300, delivered=300), "logs": Account(2, 2)})
    ranks[0] = replace(ranks[0], run_time=RUN_TIME)
    expected = """\
monitel run: train, 4 ranks, 200 steps, 8.00 steps/s
  verdict   late rank: rank 2 took 30.0 ms longer than the others in data (22 %
            of each step)
  ledger    1 min 40 s (step 80 %, startup 10 %, data 10 %); 10 % of the time
            went into starting up
  late      rank 2, data, 30.0 ms a step (22 % of the cycle)
  exported  1,200 windows and numbers, 8 events"""
    assert expected == text(ranks)


def test_deaths_and_failures(tmp_path: Path) -> None:
    """The command that shows more is beside each death."""
    ranks = late_ranks(last_step=1200, steps=1200, spool_dir=f"{tmp_path}/spool")
    (tmp_path / "spool").mkdir()
    ranks[3] = replace(ranks[3], death="killed by SIGKILL", status="", step_ns=1000 * S - 4 * S // 10, observed=True)
    ranks[1] = replace(ranks[1], status="failed", accounts={"logs": Account(9, 1, 5, dropped={"queue_full": 3})})
    ranks[0], ranks[2] = (replace(ranks[rank], status="preempted") for rank in (0, 2))
    assert (
        "rank 3 killed by SIGKILL at step 1,200, 400 ms after its last step; monitel autopsy 103",
        "rank 1 failed",
        "0 windows and numbers, 1 events",
        f"5 items, deliver with: monitel replay {tmp_path}",
        "3 items (queue_full 3)",
    ) == tuple(row(label, ranks) for label in ("died", "ended", "exported", "on disk", "lost"))
    assert "dead: rank 3 killed by SIGKILL at step 1,200; 1 more ended after it" == row("verdict", ranks)
    assert "            ranks 0 and 2 preempted" in text(ranks).splitlines()


def test_spool_that_was_delivered_meanwhile_is_exported(tmp_path: Path) -> None:
    """The command delivers what its processes have left, after their reports."""
    ranks = [
        report(rank, spool_dir=f"{tmp_path}/{rank}", stored=True, accounts={"metrics": Account(9, 5, 4)})
        for rank in range(3)
    ]
    for rank in (0, 1):
        (tmp_path / f"{rank}").mkdir()
    assert f"8 items, deliver with: monitel replay {tmp_path}" == row("on disk", ranks)
    assert "19 windows and numbers, 0 events" == row("exported", ranks)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], "monitel run: nothing was recorded"),
        ([report(accounts={"logs": Account(2, 2)})], "monitel run: no training steps\n  exported  0 windows and num"),
        ([report(steps=90, skipped=10)], "monitel run: train, 100 steps (10 skipped)"),
        (
            [report(rank, steps=9 + rank, step_time=Total(8, 4.0 - rank), world_size=2) for rank in range(2)],
            "monitel run: train, 2 ranks, 9 to 10 steps, 2.00 steps/s (rank 0) to 2.67 steps/s (rank 1)",
        ),
        (
            [
                report(
                    rank,
                    attempt=rank,
                    steps=5 * (rank < 2),
                    status="failed",
                    owner=Owner("h", "b", "1", f"{rank}", "1"),
                )
                for rank in range(3)
            ],
            "monitel run: train, 3 attempts, 5 steps in attempt 1\n  verdict   failed: rank 2 failed before the",
        ),
    ],
)
def test_beginning_of_the_summary(reports: list[Report], expected: str) -> None:
    """A program that has recorded nothing gets one short line."""
    assert expected == text(reports, Screen(200))[: len(expected)]
    if not reports:
        assert expected == text(reports)


def test_long_lists_are_shortened() -> None:
    """The summary stays on one screen, with many ranks, attempts and jobs."""
    dead = [
        report(rank, job=JobName("", f"job {job}"), attempt=attempt, death="killed by SIGKILL", status="", steps=9)
        for job in range(9)
        for attempt in range(3)
        for rank in range(64)
    ]
    dead = [replace(each, owner=each.owner._replace(start=f"{number}")) for number, each in enumerate(dead)]
    failed = [
        report(rank, attempt=attempt, status="failed", owner=dead[0].owner._replace(start=f"f{rank} {attempt}"))
        for attempt in range(8)
        for rank in range(64)
    ]
    lines = text([*failed, *dead]).splitlines()
    assert len(lines) < 45
    assert "            and 189 more" in lines
    assert "ranks 0, 1, 2, 3, 4, 5 and 58 more failed in attempt 7" in lines[1] + lines[2]


@given(st.integers(20, 80), st.booleans(), st.sampled_from(["utf-8", "ascii"]))
def test_no_line_is_wider_than_the_screen(width: int, terminal: bool, encoding: str) -> None:
    """Only a word that is longer, such as a path, or columns that belong together, may be."""
    ranks = late_ranks(world_size=9, last_step=1, status="failed")
    ranks[0] = replace(ranks[0], run_time=RUN_TIME, death="killed by SIGKILL", step_ns=999 * S, observed=True)
    lines = summary_lines(ranks, ["the report x is damaged"], Screen(width, terminal, encoding=encoding))
    assert [] == [line for line in lines if columns_of(line) > max(width, 24)]


def test_control_characters_are_printed_as_escapes() -> None:
    r"""Names, statuses and paths come from outside."""
    evil = "\x1b]0;x\x07\n"
    process = replace(
        late_ranks()[0],
        job=JobName(evil, evil),
        death=evil,
        spool_dir=f"/{evil}",
        stored=True,
        accounts={"logs": Account(1, 1, dropped={evil: 1})},
    )
    found = text([process, report(1, status=evil)], problems=(evil,))
    assert all(each == "\n" or each.isprintable() for each in found)
    assert text([process]).count("\n") < 12


def test_unreadable_reports_are_mentioned(tmp_path: Path) -> None:
    """The others are still there; nothing raises, even if the stream is closed."""
    tmp_path.chmod(0o700)
    write_report(tmp_path, report(steps=2))
    for number in range(3):
        (tmp_path / f"report-{number}-1-00.json").write_text("{}")
    stream = io.StringIO()
    print_summary(tmp_path, stream)
    assert "  missing   the report report-0-1-00.json is not a report (and 2 more)" in stream.getvalue()
    stream.close()
    print_summary(tmp_path, stream)
    print_summary(tmp_path / "missing", io.StringIO())


def equal_ranks(**fields: Any) -> list[Report]:
    """Return the reports of four ranks of which none is late."""
    return [replace(each, stages=totals({**LATE[0], "sync": 0})) for each in late_ranks(**fields)]


def test_only_the_last_attempt_counts_in_the_verdict() -> None:
    """An earlier death is in another row."""
    killed = report(
        2, attempt=0, steps=9, death="killed by SIGKILL", status="", owner=late_ranks()[0].owner._replace(start="1")
    )
    ranks = [killed, *equal_ranks(attempt=1)]
    assert row("verdict", ranks).startswith("healthy: 4 ranks")
    assert any(line.startswith("  died ") for line in summary_lines(ranks, (), Screen(1000)))


def test_forked_child_does_not_hide_the_death_of_its_rank() -> None:
    """The child has the rank and the last step of its parent, has made no steps, and ends later."""
    ranks = equal_ranks()
    ranks[1] = replace(ranks[1], death="killed by SIGKILL", status="", last_step=200)
    later_ns = ranks[1].time_ns + 10**9
    owner = ranks[1].owner._replace(start="77")
    child = report(1, steps=0, skipped=0, first_step=None, last_step=200, time_ns=later_ns, owner=owner, stages=())
    assert "dead: rank 1 killed by SIGKILL at step 200" == row("verdict", [*ranks, child])


@pytest.mark.parametrize(("seconds", "kind"), [(29.0, "healthy: "), (31.0, "no steps: ranks 0-3 made none for 31 s")])
def test_hung_job_that_was_interrupted(seconds: float, kind: str) -> None:
    """The ledger has more time in steps than the steps took."""
    time = {"startup": 9 * S, "data": 2 * S, "step": round((20.0 + seconds) * S)}
    ranks = equal_ranks(status="interrupted", step_time=Total(160, 20.0), activities=time)
    assert row("verdict", ranks).startswith(kind)
