"""Collectors that are killed at any system call, or run at the same time: nothing is lost, and nothing is twice."""

from __future__ import annotations

import gc
import os
import signal
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.producers import run_together
from tests.support.spools import make_request, names
from tests.unit.blackbox.collection.dead_boxes import (
    SPOOL,
    box_with_requests,
    dead_process,
    hidden,
    make_box,
    spooled_bodies,
    spooled_deaths,
    take_spools,
)

from monitel_otlp.collection import kernel_log
from monitel_otlp.collection.collector import collect_boxes

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = ("open", "close", "pwrite", "ftruncate", "rename", "unlink", "mkdir", "rmdir", "listdir", "fstat", "stat")
_BODIES = [b"1 metrics", b"1 traces"]


@pytest.fixture(autouse=True)
def without_kernel_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not read the log of the kernel, which takes some milliseconds, for each of a hundred collections."""
    monkeypatch.setattr(kernel_log, "_LOG", Path("missing"))


def run_until_killed(action: Callable[[], object], step: int, *, torn: bool = False) -> bool:
    """Run a function in a forked child, and kill the child before its system call number ``step``.

    Args:
        action: The function.
        step: Number of the call, from 0 on.
        torn: Count only writes, and let the call write half of its content.

    Returns:
        False if the function has ended before.
    """
    child = os.fork()
    if not child:
        gc.disable()  # it would copy the memory of pytest
        try:
            _kill_at(step, torn=torn)
            action()
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status != 0


def _kill_at(step: int, *, torn: bool) -> None:
    numbers = count()

    def killing(call: Any) -> Any:
        def replacement(*arguments: Any, **options: Any) -> Any:
            if next(numbers) == step:
                if torn:
                    descriptor, content, offset = arguments
                    call(descriptor, content[: len(content) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return replacement

    for name in ("pwrite",) if torn else _CALLS:
        setattr(os, name, killing(getattr(os, name)))


@pytest.fixture
def prepared(tmp_path: Path, own_boxes: Path) -> Callable[[str], tuple[Path, Path]]:
    """Return a function that makes two folders: one with a box, and one for spools."""
    (tmp_path / "template").mkdir()
    box_with_requests(tmp_path / "template" / "boxes", tmp_path / "runs" / SPOOL)

    def prepare(folder: str = "runs") -> tuple[Path, Path]:
        for each in (own_boxes, tmp_path / folder):
            rmtree(each, ignore_errors=True)
        copytree(tmp_path / "template" / "boxes", own_boxes)
        (tmp_path / folder).mkdir()
        return own_boxes, tmp_path / folder

    return prepare


@pytest.mark.parametrize("torn", [False, True], ids=["between calls", "in a write"])
def test_killed_collector_loses_and_doubles_nothing(
    prepared: Callable[[], tuple[Path, Path]], tmp_path: Path, *, torn: bool
) -> None:
    """Whatever the first collector has made visible is delivered; the next one adds exactly the rest."""
    ends = set()
    for step in count():
        boxes, runs = prepared()
        killed = run_until_killed(lambda: collect_boxes(boxes, fallback=tmp_path / "fallback"), step, torn=torn)  # noqa: B023
        delivered, deaths = take_spools(runs)
        ends.add(len(delivered))
        assert [] == collect_boxes(boxes, fallback=tmp_path / "fallback").problems
        rest, more_deaths = take_spools(runs)
        assert _BODIES == sorted(delivered + rest), step
        assert 1 == len(deaths + more_deaths), step
        assert ([], []) == (names(boxes), names(runs)), step
        if not killed:
            break
    assert step > (3 if torn else 40)
    assert ends == ({0, 2})


def test_collectors_that_are_killed_one_after_the_other_lose_and_double_nothing(
    prepared: Callable[[], tuple[Path, Path]], tmp_path: Path
) -> None:
    """Each of them comes a few calls further than the one before, or begins again."""
    boxes, runs = prepared()
    delivered: list[bytes] = []
    for step in count(5, 5):
        killed = run_until_killed(lambda: collect_boxes(boxes, fallback=tmp_path / "fallback"), step)
        delivered += take_spools(runs)[0]
        if not killed:
            break
    assert _BODIES == sorted(delivered)
    assert ([], []) == (names(boxes), names(runs))


def test_killed_collector_with_another_folder_is_continued(own_boxes: Path, tmp_path: Path) -> None:
    """The folder of the process does not exist for either; the spool is in that of one of the collectors."""
    for step in count(0, 3):
        rmtree(own_boxes, ignore_errors=True)
        owner = dead_process()._replace(namespace="1")
        make_box(own_boxes, tmp_path / "missing" / SPOOL, owner=owner, requests=[make_request(0)])
        killed = run_until_killed(lambda: collect_boxes(own_boxes, fallback=tmp_path / "one"), step)
        collect_boxes(own_boxes, fallback=tmp_path / "other")
        bodies = [each for folder in ("one", "other") for each in spooled_bodies(tmp_path / folder)]
        assert [b"body 0"] == bodies, step
        assert [] == names(own_boxes), step
        for folder in ("one", "other"):
            rmtree(tmp_path / folder, ignore_errors=True)
        if not killed:
            break
    assert step > 40


def test_box_waits_for_the_folder_in_which_its_spool_was_written(own_boxes: Path, tmp_path: Path) -> None:
    """In another container, where that folder does not exist, a collector cannot see whether the spool is complete."""
    owner = dead_process()._replace(namespace="1")
    for step in count(40):
        rmtree(own_boxes, ignore_errors=True)
        rmtree(tmp_path / "one", ignore_errors=True)
        make_box(own_boxes, tmp_path / "missing" / SPOOL, owner=owner, requests=[make_request(0)])
        assert run_until_killed(lambda: collect_boxes(own_boxes, fallback=tmp_path / "one"), step)
        if any(name.endswith(".collected") for name in names(own_boxes)):
            break
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    (problem,) = collect_boxes(own_boxes, fallback=tmp_path / "other").problems
    assert str(tmp_path / "one") in problem
    (tmp_path / "elsewhere").rename(tmp_path / "one")
    assert [] == collect_boxes(own_boxes, fallback=tmp_path / "other").problems
    assert [b"body 0"] == spooled_bodies(tmp_path / "one")
    assert ([], []) == (names(own_boxes), hidden(tmp_path))


def test_threads_share_the_boxes(own_boxes: Path, tmp_path: Path) -> None:
    """Each box is collected by one of them."""
    expected = [b"%d %s" % (number, kind) for number in range(1, 31) for kind in (b"metrics", b"traces")]
    for number in range(1, 31):
        box_with_requests(own_boxes, tmp_path / "runs" / SPOOL, number)
    run_together(*[lambda: collect_boxes(own_boxes, fallback=tmp_path / "fallback")] * 4)
    assert sorted(expected) == spooled_bodies(tmp_path / "runs")
    assert 30 == len(spooled_deaths(tmp_path / "runs"))
    assert [] == names(own_boxes)


def test_processes_share_the_boxes(own_boxes: Path, tmp_path: Path) -> None:
    """Each box is collected by one of them."""
    expected = [b"%d %s" % (number, kind) for number in range(1, 61) for kind in (b"metrics", b"traces")]
    for number in range(1, 61):
        box_with_requests(own_boxes, tmp_path / "runs" / SPOOL, number)
    gate, opened = os.pipe()
    children = []
    for _ in range(4):
        children.append(os.fork())
        if not children[-1]:
            os.close(opened)
            os.read(gate, 1)  # all begin together
            status = 1
            try:
                status = len(collect_boxes(own_boxes, fallback=tmp_path / "fallback").problems)
            finally:
                os._exit(status)
    os.close(opened)
    assert [0] * 4 == [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(gate)
    assert sorted(expected) == spooled_bodies(tmp_path / "runs")
    assert 60 == len(spooled_deaths(tmp_path / "runs"))
    assert [] == names(own_boxes)
