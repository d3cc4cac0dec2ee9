"""The verdict in the summary: the same rules as those of ``monitel top``, over the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.console.summary.made_reports import LATE, S, late_ranks, report, totals

from monitel_otlp.ledger.screen import Screen
from monitel_otlp.summary.facts import facts_of
from monitel_otlp.summary.jobs import jobs_of
from monitel_otlp.summary.lines import summary_lines
from monitel_otlp.summary.report import Report, Total
from monitel_otlp.summary.report_folder import read_reports
from monitel_otlp.verdict.rules import verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from tests.support.scripts import Run


def row(reports: list[Report]) -> str:
    """Return the row of the verdict in one line."""
    lines = summary_lines(reports, (), Screen(1000))
    [found] = [line for line in lines if line.startswith("  verdict ")]
    return found.removeprefix("  verdict").strip()


def equal_ranks(**fields: Any) -> list[Report]:
    """Return the reports of four ranks of which none is late."""
    return [replace(each, stages=totals({**LATE[0], "sync": 0})) for each in late_ranks(**fields)]


def test_healthy_run() -> None:
    """The rate and the share of data are those of the whole run."""
    assert "healthy: 4 ranks, 8.00 steps/s, 10 % waiting for data" == row(equal_ranks())


def test_only_the_last_attempt_counts() -> None:
    """An earlier death is in another row."""
    killed = report(
        2, attempt=0, steps=9, death="killed by SIGKILL", status="", owner=late_ranks()[0].owner._replace(start="1")
    )
    ranks = [killed, *equal_ranks(attempt=1)]
    assert row(ranks).startswith("healthy: 4 ranks")
    assert any(line.startswith("  died ") for line in summary_lines(ranks, (), Screen(1000)))


def test_forked_child_does_not_hide_the_death_of_its_rank() -> None:
    """The child has the rank and the last step of its parent, has made no steps, and ends later."""
    ranks = equal_ranks()
    ranks[1] = replace(ranks[1], death="killed by SIGKILL", status="", last_step=200)
    later_ns = ranks[1].time_ns + 10**9
    owner = ranks[1].owner._replace(start="77")
    child = report(1, steps=0, skipped=0, first_step=None, last_step=200, time_ns=later_ns, owner=owner, stages=())
    assert "dead: rank 1 killed by SIGKILL at step 200" == row([*ranks, child])


def test_program_that_leaves_without_a_shutdown_is_not_dead() -> None:
    """Such a program has called ``os._exit(0)``; any other status is a fault."""
    ranks = equal_ranks(status="", death="ended with exit code 0 without a shutdown")
    assert row(ranks).startswith("healthy: 4 ranks")
    ranks[1] = replace(ranks[1], death="ended with exit code 3 without a shutdown", last_step=200)
    assert "dead: rank 1 ended with exit code 3 without a shutdown at step 200" == row(ranks)


@pytest.mark.parametrize(("seconds", "kind"), [(29.0, "healthy"), (31.0, "no-steps")])
def test_hung_job_that_was_interrupted(seconds: float, kind: str) -> None:
    """The ledger has more time in steps than the steps took."""
    time = {"startup": 9 * S, "data": 2 * S, "step": round((20.0 + seconds) * S)}
    ranks = equal_ranks(status="interrupted", step_time=Total(160, 20.0), activities=time)
    [job] = jobs_of(ranks)
    found = verdict(facts_of(job))
    assert kind == found.kind
    if kind != "healthy":
        assert "no steps: ranks 0-3 made none for 31 s before the end (usually one in 0.1 s)" == row(ranks)


def test_stages_of_a_rank_alone_count() -> None:
    """Nobody is compared with it, but its own share of data is known."""
    alone = report(0, world_size=1, steps=50, stages=totals({"data": 50, "forward": 50}))
    assert row([alone]).startswith("input-bound: 50 % of each step went into waiting for data")


#: Steps of a plain loop of which a known share waits for data.
LOOP = """\
import time
import monitel, monitel_otlp
monitel_otlp.configure(service_name="loop", run_events=False)
for step in range(1, 41):
    monitel.set_step(step)
    with monitel.activity("data"):
        time.sleep({data})
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("data", "kind"), [(0.02, "input-bound"), (0.0, "healthy")])
def test_verdict_about_a_real_process(folder: Path, receiver: Receiver, run: Run, data: float, kind: str) -> None:
    """The share is at least that of the pauses: a busy machine makes the rest of a step longer, at most."""
    run("-c", LOOP.format(data=data), env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    reports, problems = read_reports(folder)
    assert [] == problems
    [job] = jobs_of(reports)
    found = verdict(facts_of(job))
    assert kind == found.kind, found
    assert found.text in " ".join(summary_lines(reports, (), Screen(1000)))
    if kind == "input-bound":
        [process] = reports
        shares = process.activities["data"] / (process.activities["data"] + process.activities["step"])
        assert shares == pytest.approx(found.share)
