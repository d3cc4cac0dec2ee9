"""Collection of black boxes: each becomes one spool, and boxes that must not be collected are left alone."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spools import folders, make_request, names, write
from tests.unit.blackbox.boxes.holders import holding, needs_root
from tests.unit.blackbox.collection.dead_boxes import (
    SPOOL,
    box_with_requests,
    collect,
    cut_of,
    dead_process,
    header_of,
    hidden,
    make_box,
    spooled_bodies,
    spooled_deaths,
    write_file,
)

from monitel_otlp.black_box.contents import header_values
from monitel_otlp.boxes.layout import CUTS, HEADER, pack
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool.lock import this_process
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path


def test_box_becomes_a_spool_beside_that_of_its_process(boxes: Path, runs: Path) -> None:
    """Its name sorts after it and ends with the same mark; requests keep order, items and times; the box is removed."""
    requests = [FrozenRequest("metrics", b"body %d" % number, number, 1000 + number) for number in range(1, 12)]
    part = FrozenRequest("metrics", b"part", 3, 2000)
    cut = cut_of(last_request=11, time_ns=2000, parts=[(part.signal, part.body, part.items, b"", 0)])
    make_box(boxes, runs / SPOOL, requests=requests, cut=cut)
    outcome = collect(boxes)
    (folder,) = folders(runs)
    assert sorted([SPOOL, folder.name]) == [SPOOL, folder.name]
    assert folder.name.startswith(f"{SPOOL}-box")
    assert folder.name.endswith("-0a1b2c3d")
    assert [*requests, part] == list(Spool(folder).peek(["metrics"]))
    items_and_death = sum(range(1, 12)) + 3 + 1
    assert ([], [folder], 1) == (outcome.problems, outcome.spools, outcome.boxes)
    assert items_and_death == outcome.items
    assert [] == names(boxes)


def test_spool_without_endpoints_has_no_mark(boxes: Path, runs: Path) -> None:
    """Telemetry that was recorded without an endpoint waits for a replay."""
    box_with_requests(boxes, runs / "20260101-000000-7-123abcdef")
    collect(boxes)
    assert ["20260101-000000-7-123abcdef-box000001"] == names(runs)


def test_uncommitted_request_is_ignored(boxes: Path, runs: Path) -> None:
    """Its items are in the parts of the newest cut."""
    make_box(boxes, runs / SPOOL, requests=[make_request(number) for number in range(3)], cut=cut_of(last_request=2))
    collect(boxes)
    assert [b"body 0", b"body 1"] == spooled_bodies(runs)


def test_each_death_is_one_fatal_event(boxes: Path, runs: Path) -> None:
    """Two boxes, two processes, two events; nothing is collected twice."""
    for number in (1, 2):
        owner = dead_process()._replace(pid=str(4194000 + number))
        make_box(boxes, runs / SPOOL, number=number, owner=owner)
    assert 2 == len(collect(boxes).deaths)
    assert ([], []) == (collect(boxes).deaths, collect(boxes).spools)
    assert [4194001, 4194002] == sorted(each["process.pid"] for each in spooled_deaths(runs))


def test_process_that_has_called_exec_has_not_died(boxes: Path, runs: Path) -> None:
    """Its telemetry is collected, because the new program has no pipeline."""
    make_box(boxes, runs / SPOOL, owner=this_process(), requests=[make_request(0)])
    outcome = collect(boxes)
    assert ([], 1) == (outcome.deaths, outcome.items)
    assert [b"body 0"] == spooled_bodies(runs)
    assert [] == spooled_deaths(runs)


def test_exec_without_telemetry_leaves_nothing(boxes: Path, runs: Path) -> None:
    """There is no empty spool."""
    make_box(boxes, runs / SPOOL, owner=this_process())
    assert [] == collect(boxes).problems
    assert ([], []) == (names(boxes), names(runs))


def test_process_of_another_boot_is_dead(boxes: Path, runs: Path) -> None:
    """Even if a process with its id runs now."""
    make_box(boxes, runs / SPOOL, owner=this_process()._replace(boot="an earlier one"))
    assert 1 == len(collect(boxes).deaths)


def test_box_of_a_running_process_is_not_touched(boxes: Path, runs: Path) -> None:
    """Nothing in it is read or written."""
    boxes.mkdir(mode=0o700)
    with holding(boxes) as holder:
        write_file(holder.path / HEADER, pack(header_values(header_of(runs / SPOOL))))
        before = {name: (holder.path / name).stat().st_mtime_ns for name in names(holder.path)}
        outcome = collect(boxes)
        assert before == {name: (holder.path / name).stat().st_mtime_ns for name in names(holder.path)}
    assert (0, [], []) == (outcome.boxes, outcome.problems, names(runs))


@needs_root
def test_box_of_another_user_is_not_touched(boxes: Path, runs: Path) -> None:
    """The box is neither read nor removed."""
    box = box_with_requests(boxes, runs / SPOOL)
    os.chown(box, 12345, 12345)
    assert 0 == collect(boxes).boxes
    assert box.exists()
    assert [] == names(runs)


@pytest.mark.parametrize("name", [HEADER, *CUTS[:1]])
def test_damaged_box_is_set_aside_and_reported_once(boxes: Path, runs: Path, name: str) -> None:
    """Later collectors do not read it again."""
    box = box_with_requests(boxes, runs / SPOOL)
    for file in (box / name, box / CUTS[1]):
        write_file(file, b"\0" * 100)
    (problem,) = collect(boxes).problems
    assert str(box) in problem
    assert [f"{box.name}.corrupt"] == names(boxes)
    assert [] == collect(boxes).problems
    assert ([], []) == (names(runs), hidden(runs))


def test_box_with_valid_checksums_and_senseless_content_is_set_aside(boxes: Path, runs: Path) -> None:
    """A collector reports no traceback, and does not try it again."""
    box = make_box(boxes, runs / SPOOL, cut=cut_of(windows=b"no windows", state=b"no state"))
    (problem,) = collect(boxes).problems
    assert "set aside" in problem
    assert [f"{box.name}.corrupt"] == names(boxes)


@pytest.mark.parametrize(
    "context", [{"activity": 1}, {"stage": 1}, {"ranges": 5}, {"waits": [("key",)]}, {"step": "x"}]
)
def test_senseless_description_of_the_death_costs_only_itself(boxes: Path, runs: Path, context: dict[str, Any]) -> None:
    """Telemetry and event are collected."""
    make_box(boxes, runs / SPOOL, requests=[make_request(0)], cut=cut_of(last_request=1, context=context))
    collect(boxes)
    assert [b"body 0"] == spooled_bodies(runs)
    assert 1 == len(spooled_deaths(runs))


def test_box_of_a_newer_version_is_left_alone(boxes: Path, runs: Path) -> None:
    """The message says what to do."""
    box = box_with_requests(boxes, runs / SPOOL)
    write_file(box / HEADER, pack({**header_values(header_of(runs / SPOOL)), "version": 99}))
    for _ in range(2):
        (problem,) = collect(boxes).problems
        assert "use another version of monitel-otlp" in problem
    assert [box.name] == names(boxes)


@pytest.mark.parametrize("header", [None, b"", b"mtbox\x00\x00\x01torn"])
def test_box_without_a_complete_header_is_removed(boxes: Path, runs: Path, header: bytes | None) -> None:
    """Its process was killed while it made the box: it holds nothing."""
    box = make_box(boxes, runs / SPOOL)
    (box / CUTS[0]).unlink()
    (box / HEADER).unlink()
    if header is not None:
        write_file(box / HEADER, header)
    assert [] == collect(boxes).problems
    assert ([], []) == (names(boxes), names(runs))


def test_missing_folder_of_the_same_machine_is_made(boxes: Path, tmp_path: Path) -> None:
    """The process was killed before it needed its spool."""
    box_with_requests(boxes, tmp_path / "new" / "runs" / SPOOL)
    collect(boxes, tmp_path / "fallback")
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(tmp_path / "new")


def test_folder_of_another_container_is_replaced(boxes: Path, tmp_path: Path) -> None:
    """The path may mean something else there: the spool is written to the folder of the collector."""
    owner = dead_process()._replace(namespace="1")
    make_box(boxes, tmp_path / "missing" / SPOOL, owner=owner, requests=[make_request(0)])
    collect(boxes, tmp_path / "fallback")
    assert not (tmp_path / "missing").exists()
    assert [b"body 0"] == spooled_bodies(tmp_path / "fallback")


def test_folder_that_cannot_be_made_is_replaced(boxes: Path, tmp_path: Path) -> None:
    """For instance because a part of its path is a file here."""
    write_file(tmp_path / "file", b"")
    box_with_requests(boxes, tmp_path / "file" / "runs" / SPOOL)
    collect(boxes, tmp_path / "fallback")
    assert [b"1 metrics", b"1 traces"] == spooled_bodies(tmp_path / "fallback")


def test_final_name_that_is_taken_gets_a_number(boxes: Path, runs: Path) -> None:
    """Two boxes with one spool folder and one random number, for instance. The mark stays at the end."""
    taken = runs / f"{SPOOL}-box000001-0a1b2c3d"
    write(taken, make_request(7))
    box_with_requests(boxes, runs / SPOOL)
    outcome = collect(boxes)
    assert ([], [runs / f"{SPOOL}-box000001-2-0a1b2c3d"]) == (outcome.problems, outcome.spools)
    assert [b"1 metrics", b"1 traces", b"body 7"] == spooled_bodies(runs)


def test_link_in_the_place_of_the_unfinished_spool_is_not_followed(boxes: Path, runs: Path, tmp_path: Path) -> None:
    """Nothing is written to its target, or removed there; the box stays."""
    box = box_with_requests(boxes, runs / SPOOL)
    target = tmp_path / "target"
    target.mkdir()
    write_file(target / "precious", b"")
    (runs / f".{SPOOL}-box000001-0a1b2c3d.unfinished").symlink_to(target)
    assert 1 == len(collect(boxes).problems)
    assert ([box.name], ["precious"]) == (names(boxes), names(target))


def test_unfinished_spool_is_not_a_spool(boxes: Path, runs: Path) -> None:
    """Commands and the next pipeline do not see it."""
    box_with_requests(boxes, runs / SPOOL)
    collect(boxes)
    (folder,) = folders(runs)
    unfinished = folder.rename(folder.with_name(f".{folder.name}.unfinished"))
    assert unfinished.exists()
    assert [] == folders(runs)


def test_spool_of_a_box_can_be_delivered_at_once(boxes: Path, runs: Path) -> None:
    """The collector does not keep it locked."""
    box_with_requests(boxes, runs / SPOOL)
    (folder,) = collect(boxes).spools
    with closing(Spool(folder)) as spool:
        spool.load()
        assert spool.oldest("metrics") is not None
