"""Each column compared with the notes that the job itself has made."""

from __future__ import annotations

import math
import os
import signal
import time
from threading import Event
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.top.noted_jobs import (
    ENDLESS,
    HANG,
    PATIENCE_S,
    STEPS,
    by_rank,
    looking,
    ranks_of,
    true_data_share,
    true_rate,
    true_step_times,
    until,
)

from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from pathlib import Path

WATCHED_S = 5.0  # more than a period needs


def test_columns_of_two_ranks_agree_with_their_notes(tmp_path: Path, own_boxes: Path) -> None:
    """Step, rate, quantiles, share of data, loss and goodput of both, within the tolerances below."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2 and all(row.data is not None for row in look.ranks))
        Event().wait(WATCHED_S)
        before_s = time.monotonic()
        look = ranks.look()
        after_s = time.monotonic()
        (job,) = look.jobs
        assert ("llm", 2, [0, 1]) == (job.name.service, job.ranks[0].world_size, [each.rank for each in job.ranks])
        for row in job.ranks:
            each = running[f"{row.rank}"]
            notes = each.notes()
            assert (each.process.pid, RankState.ALIVE, "", "") == (row.pid, row.state, row.death, row.problem)
            # The step is one that was the last one at some time during the look.
            assert row.step is not None
            assert notes[row.step].set_s <= after_s + 0.01
            assert row.step + 1 >= len(notes) or notes[row.step + 1].set_s >= before_s - 0.01
            assert row.step_age_ns is not None
            assert before_s - 0.01 <= notes[row.step].set_s + row.step_age_ns / 1e9 <= after_s + 0.02
            assert row.rate == pytest.approx(true_rate(notes, after_s, 10.0), rel=0.3)
            times = true_step_times(notes, after_s)
            assert row.step_p50 == pytest.approx(times[len(times) // 2], rel=0.1)
            assert row.step_p99 is None or row.step_p99 == pytest.approx(times[-1 - len(times) // 100], rel=0.1)
            assert row.data == pytest.approx(true_data_share(notes, after_s, WATCHED_S), abs=0.12)
            losses = {note.loss for note in notes if note.set_s >= before_s - 3.0}  # a cut is a second old at most
            assert "train.loss" == row.value_name
            assert row.value in losses
            # Everything but data and the start is steps. The process starts a moment after the test has noted it.
            elapsed_s = before_s - each.started_s
            lost_s = notes[-1].data_s + notes[0].set_s - each.started_s
            assert row.goodput == pytest.approx(1 - lost_s / elapsed_s, abs=0.12)
            assert row.event is not None
            assert ("epoch.start", 1) == (row.event.name, row.event.attributes["epoch"])


def test_first_look_shows_the_life_of_the_process(tmp_path: Path, own_boxes: Path) -> None:
    """There is no second look to compare with."""
    with ranks_of(tmp_path, {"0": ENDLESS}) as running, looking(own_boxes) as ranks:
        (row,) = until(ranks, lambda look: look.ranks and look.ranks[0].data is not None).ranks
        notes = running["0"].notes()
        elapsed_s = time.monotonic() - running["0"].started_s
        assert row.data == pytest.approx(notes[-1].data_s / elapsed_s, abs=0.15)
        assert row.step is not None
        assert 0 <= row.step <= notes[-1].step


def test_hung_rank_shows_its_wait_and_makes_no_steps(tmp_path: Path, own_boxes: Path) -> None:
    """The other rank goes on."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": HANG}) as running, looking(own_boxes) as ranks:
        look = until(ranks, lambda look: look.ranks and by_rank(look)[1].waits and by_rank(look)[1].rate == 0.0)
        now_s = time.monotonic()
        row, other = by_rank(look)[1], by_rank(look)[0]
        (wait,) = row.waits
        began_s = running["1"].mark("wait")
        assert began_s is not None
        assert "all_reduce" == wait.key
        assert wait.age_ns / 1e9 == pytest.approx(now_s - began_s, abs=1.0)
        assert (9, RankState.ALIVE) == (row.step, row.state)
        assert 0.0 == row.rates[-1]
        assert (RankState.ALIVE, ()) == (other.state, other.waits)
        assert other.rate is not None
        assert other.rate > 0
        assert other.step is not None
        assert other.step > 9


def test_killed_rank_stays_with_its_last_step(tmp_path: Path, own_boxes: Path) -> None:
    """The step is exact, because the page is in shared memory."""
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: len(look.ranks) == 2 and by_rank(look)[1].value is not None)
        running["1"].process.kill()
        running["1"].process.wait(PATIENCE_S)
        rows = by_rank(ranks.look())
        assert RankState.ALIVE is rows[0].state
        dead, notes = rows[1], running["1"].notes()
        assert (RankState.DEAD, None) == (dead.state, dead.rate)
        assert dead.step in {notes[-1].step, notes[-1].step + 1}  # it may have died between a step and its note
        assert dead.value in {note.loss for note in notes}
        assert time.time_ns() - dead.seen_ns < PATIENCE_S * 1e9


def test_stopped_rank_is_silent_until_it_goes_on(tmp_path: Path, own_boxes: Path) -> None:
    """SIGSTOP, as by a debugger or a scheduler."""
    with ranks_of(tmp_path, {"0": ENDLESS}) as running, looking(own_boxes) as ranks:
        os.kill(running["0"].process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        look = until(ranks, lambda look: look.ranks[0].state is RankState.SILENT)
        assert time.monotonic() - stopped_s > 1.5
        assert look.ranks[0].step == running["0"].notes()[-1].step
        os.kill(running["0"].process.pid, signal.SIGCONT)
        until(ranks, lambda look: look.ranks[0].state is RankState.ALIVE)


def test_waits_for_other_ranks_are_a_share_of_the_time(tmp_path: Path, own_boxes: Path) -> None:
    """From the stage ``sync``, which monitel.torch measures; here the script adds its samples itself."""
    script = f"""{STEPS}
sync = Stat("training.stage.duration", [MEAN], 60.0, unit="s", attributes={{"training.stage": "sync"}}, monotonic=True)
for step in range(1_000_000):
    run([step])
    sync.add(0.09)
"""
    with ranks_of(tmp_path, {"0": script}) as running, looking(own_boxes) as ranks:
        until(ranks, lambda look: look.ranks and look.ranks[0].data is not None)
        Event().wait(WATCHED_S)
        (row,) = ranks.look().ranks
        truth = 0.09 * true_rate(running["0"].notes(), time.monotonic(), WATCHED_S)
        assert row.waiting == pytest.approx(truth, abs=0.08)


def test_chosen_number_is_a_stat_or_a_logged_number(tmp_path: Path, own_boxes: Path) -> None:
    """``--show``; it can be changed between two looks, even for a process that has died."""
    script = f"""{STEPS}
rate = Stat("learning.rate", [MEAN], 60.0)
for step in range(1_000_000):
    rate.add(0.5)
    monitel.log({{"accuracy": 0.75, "broken": float("nan")}})
    run([step])
"""
    with ranks_of(tmp_path, {"0": script}) as running, looking(own_boxes, show="accuracy") as ranks:
        until(ranks, lambda look: look.ranks[0].value == 0.75)
        ranks.show = "learning.rate"
        until(ranks, lambda look: look.ranks[0].value == 0.5)
        ranks.show = "broken"
        until(ranks, lambda look: look.ranks[0].value is not None and math.isnan(look.ranks[0].value))
        ranks.show = "nothing"
        (row,) = ranks.look().ranks
        assert ("nothing", None) == (row.value_name, row.value)
        running["0"].process.kill()
        running["0"].process.wait(PATIENCE_S)
        ranks.show = None
        (row,) = until(ranks, lambda look: look.ranks[0].state is RankState.DEAD).ranks
        assert "train.loss" == row.value_name
        assert row.value in {note.loss for note in running["0"].notes()}


def test_many_processes_are_read_in_turns(tmp_path: Path, own_boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are those of each look; the loss of one process is read in each."""
    monkeypatch.setattr("monitel_otlp.top.ranks._AT_ONCE", 1)
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}), looking(own_boxes) as ranks:
        first = by_rank(until(ranks, lambda look: len(look.ranks) == 2 and all(row.value for row in look.ranks)))
        Event().wait(2.0)  # in which there are cuts
        second = by_rank(ranks.look())
        assert [True, True] == [(second[rank].step or 0) > (first[rank].step or 0) for rank in (0, 1)]
        assert 1 == sum(first[rank].value != second[rank].value for rank in (0, 1))
        third = by_rank(ranks.look())
        assert [True, True] == [first[rank].value != third[rank].value for rank in (0, 1)]
        assert all(row.step_p50 is not None for row in third.values())
