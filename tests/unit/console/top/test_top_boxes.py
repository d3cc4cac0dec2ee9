"""Boxes that a search misses, that are not complete yet, that are out of reach, or that belong to another user."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.unit.blackbox.collection.dead_boxes import cut_of, make_box, write_file
from tests.unit.console.top.noted_jobs import ENDLESS, PATIENCE_S, by_rank, looking, ranks_of, until

from monitel_otlp.autopsy import death_events
from monitel_otlp.autopsy.examination import examine
from monitel_otlp.boxes.layout import CONTEXT
from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.compare.telemetry import Telemetry
from monitel_otlp.spool.folder import Folder, SpoolError
from monitel_otlp.top import departures, ranks
from monitel_otlp.top.box_watch import BoxWatch
from monitel_otlp.top.rank import RankState

if TYPE_CHECKING:
    from monitel_otlp.autopsy.findings import Findings


def open_below(folder: Path) -> list[str]:
    """Return the open files of this process below a folder."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return [name for name in found if name.startswith(str(folder))]


def test_box_that_a_search_has_missed_is_watched_again(
    tmp_path: Path, own_boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search finds fewer boxes if there are no free descriptors."""
    monkeypatch.setattr(ranks, "_SEARCH_NS", -1)
    with ranks_of(tmp_path, {"0": ENDLESS}), looking(own_boxes) as watched:
        first = until(watched, lambda look: look.ranks and look.ranks[0].step is not None).ranks[0].step
        with monkeypatch.context() as patched:
            patched.setattr(ranks, "boxes_of", lambda target, problems: [])
            assert RankState.ENDED is watched.look().ranks[0].state
        look = until(watched, lambda look: look.ranks[0].state is RankState.ALIVE)
        assert "" == look.ranks[0].problem
        until(watched, lambda look: (look.ranks[0].step or 0) > (first or 0) + 1)


def test_dead_box_is_not_kept_open(tmp_path: Path, own_boxes: Path) -> None:
    """Thousands of processes may die while they are watched. A number can still be chosen."""
    with ranks_of(tmp_path, {"0": ENDLESS}) as running, looking(own_boxes) as watched:
        until(watched, lambda look: look.ranks and look.ranks[0].value is not None)
        assert open_below(own_boxes)
        running["0"].process.kill()
        running["0"].process.wait(PATIENCE_S)
        assert RankState.DEAD is watched.look().ranks[0].state
        assert [] == open_below(own_boxes)
        watched.show = "nothing"
        assert ("nothing", "") == (watched.look().ranks[0].value_name, watched.look().ranks[0].problem)
        assert [] == open_below(own_boxes)


def test_page_that_appears_after_the_header_is_read(tmp_path: Path, own_boxes: Path) -> None:
    """A process writes the header of its box first."""
    with ranks_of(tmp_path, {"0": ENDLESS}), looking(own_boxes) as watched:
        (row,) = until(watched, lambda look: look.ranks and look.ranks[0].step is not None).ranks
        page = (row.box / CONTEXT).read_bytes()
    box = make_box(tmp_path / "boxes", tmp_path / "spool", cut=cut_of())
    watch = BoxWatch(box)
    try:
        watch.refresh()
        assert watch.page.step is None
        write_file(box / CONTEXT, page)
        watch.refresh(only_page=True)
        assert watch.page.step is not None
    finally:
        watch.close()


def test_spool_out_of_reach_leaves_the_other_rows(
    tmp_path: Path, own_boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one on a server that does not answer any more."""

    def fail(root: Path, problems: list[str]) -> list[Findings]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(departures, "deaths_below", fail)
    with ranks_of(tmp_path, {"0": ENDLESS, "1": ENDLESS}) as running, looking(own_boxes) as watched:
        until(watched, lambda look: len(look.ranks) == 2)
        running["1"].process.kill()
        running["1"].process.wait(PATIENCE_S)
        assert [] == collect_boxes(own_boxes, fallback=tmp_path).problems
        rows = by_rank(until(watched, lambda look: by_rank(look)[1].state is not RankState.ALIVE))
        assert "Stale file handle" == rows[1].problem
        assert RankState.ALIVE is rows[0].state


def test_spools_that_cannot_be_searched_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the folder itself."""

    def fail(root: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(death_events, "find_spools", fail)
    problems: list[str] = []
    assert [] == death_events.deaths_below(Path("/spools"), problems)
    assert [f"'/spools' cannot be searched: {os.strerror(errno.EIO)}"] == problems


def test_nothing_is_written_into_a_box_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could write there. The readers of boxes refuse it without a trial."""
    box = make_box(tmp_path / "boxes", tmp_path / "spool", cut=cut_of())
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    before = box.stat().st_mtime_ns
    words = r"belongs to another user \(id \d+\)"
    with pytest.raises(SpoolError, match=words):
        Folder.open(box, probe=False)
    with pytest.raises(SpoolError, match=words):
        BoxWatch(box)
    problems: list[str] = []
    assert [] == examine([box], problems)
    Telemetry(lambda process: True, problems).add_box(box)
    assert 2 == sum("belongs to another user" in each for each in problems)
    assert before == box.stat().st_mtime_ns


def test_target_that_is_given_in_two_ways_is_shown_once(
    tmp_path: Path, own_boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes, and the spools that they become."""
    with ranks_of(tmp_path, {"0": ENDLESS}) as running:
        pid = running["0"].process.pid
        monkeypatch.chdir(own_boxes)
        (name,) = os.listdir(own_boxes)  # noqa: PTH208  only names are needed
        with looking(own_boxes, ".", name) as watched:
            assert [pid] == [row.pid for row in watched.look().ranks]
        running["0"].process.kill()
        running["0"].process.wait(PATIENCE_S)
    monkeypatch.chdir(tmp_path)
    collect_boxes(own_boxes, fallback=tmp_path)
    with looking(tmp_path / "0" / "spool", "./0", tmp_path) as watched:
        assert [pid] == [row.pid for row in watched.look().ranks]
