"""The screens of ``monitel top`` around the list: one process, help, other sizes, and readings that hang or fail."""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.autopsy.test_autopsy_processes import HANG, job
from tests.unit.console.terminal.app_driver import run, session
from tests.unit.console.terminal.made_ranks import Looks, dead_rank, look_at, rank_of, waiting_rank

from monitel_otlp.ledger.screen import Screen, columns_of
from monitel_otlp.terminal import background
from monitel_otlp.top.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.console.terminal.app_driver import Session

    from monitel_otlp.top.rank import Look

STUCK = f"{HANG}stuck_here()\n"
FOUR = look_at(*map(rank_of, range(4)))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_scroll_bar_hides_nothing(width: int) -> None:
    """In a list that is longer than the screen, each line ends before the scroll bar."""

    async def test() -> None:
        ranks = [waiting_rank(rank, 30.0, "all_reduce of a long name") for rank in range(30)]
        async with session(Looks(look_at(*ranks)), width=width, height=10) as top:
            body = top.widgets[2]
            await top.until(lambda: body.show_vertical_scrollbar, "the scroll bar")
            assert {True} == {columns_of(line.text) <= body.scrollable_content_region.width for line in body.shown}

    run(test)


async def scrolled_to(top: Session, words: str) -> str:
    """Scroll down until a line contains the words, and return that line."""
    for _ in range(50):
        for line in top.lines:
            if words in line:
                return line
        await top.press("pagedown")
    raise AssertionError(f"{words} is not there:\n{top.text}")


def test_detail_shows_everything_about_a_process(tmp_path: Path) -> None:
    """Enter shows the identity, waits, windows and events of a process that runs, and its waits grow older."""

    async def test() -> None:
        with job(tmp_path, STUCK) as process:
            async with session(Ranks([str(process.pid)]), height=60) as top:
                await top.press("enter")
                await top.until_shown("all_reduce for 2")
                lines = top.lines
                assert any(line.startswith(f"process {process.pid}, host ") for line in lines)
                assert any(re.match(r"step +49, set .* ago", line) for line in lines)
                assert any(re.match(r"activity +checkpoint.save for", line) for line in lines)
                assert any(re.match(r"train.loss +50 +0.0\d+ +0.02 +0.02 +1", line) for line in lines)
                assert any(re.match(r"train.samples +400|counters +train.samples 400", line) for line in lines)
                assert re.search(r"INFO +epoch.start .*epoch=7", await scrolled_to(top, "epoch.start"))
                await top.press("home")
                await top.until_shown("all_reduce for 4")
                await top.press("escape")
                assert "by rank, ascending" in top.lines[0]

    run(test)


def test_stacks_come_on_request(tmp_path: Path) -> None:
    """The key s asks the process for its Python stacks, and scrolls to the answer."""

    async def test() -> None:
        with job(tmp_path, STUCK) as process:
            async with session(Ranks([str(process.pid)]), height=20) as top:
                await top.press("s")
                await top.until_shown("stacks at ", "in hang", "in stuck_here")
                assert "monitel autopsy --all shows them" in await scrolled_to(top, "of monitel:")

    run(test)


def test_keys_work_while_a_stopped_process_is_asked(tmp_path: Path) -> None:
    """A process that cannot answer is asked for a second or more; the screen scrolls meanwhile, and says so then."""

    async def test() -> None:
        with job(tmp_path, STUCK) as process, stopped(process.pid):
            async with session(Ranks([str(process.pid)]), height=12) as top:
                await top.press("enter")
                await top.until_shown("host ")
                await top.press("s")
                assert "waiting for the stacks of the process" in top.lines[0]
                await top.press("end")
                await top.until(lambda: top.widgets[1].scroll_offset.y > 0)
                await top.until_shown("stacks at ", "the process has not answered")

    run(test)


def test_detail_of_a_box_that_is_gone_shows_its_last_row() -> None:
    """A process whose box was collected keeps the numbers of its row, and the cause of its death."""

    async def test() -> None:
        async with session(Looks(look_at(dead_rank(1, waits=waiting_rank(0, 41).waits)))) as top:
            await top.press("enter")
            await top.until_shown("the black box is gone: these are its last numbers")
            for words in ("killed by SIGKILL", "41 s all_reduce", "4001", "checkpoint.saved"):
                assert words in top.text

    run(test)


def test_pause_stops_the_detail(tmp_path: Path) -> None:
    """A pause also stops the view of a process, and goes on behind it."""

    async def test() -> None:
        with job(tmp_path, STUCK) as process:
            async with session(Ranks([str(process.pid)]), height=60) as top:
                await top.press("enter")
                await top.until_shown("all_reduce for ")
                await top.press("p")
                before = [line for line in top.lines if "all_reduce" in line]
                for _ in range(3):
                    await top.next_look()
                assert before == [line for line in top.lines if "all_reduce" in line]
                await top.press("p")
                await top.until(lambda: before != [line for line in top.lines if "all_reduce" in line])

    run(test)


def test_readings_that_hang_do_not_stop_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a disk does not answer, the first line says so, and the cursor moves; it starts no further thread."""
    monkeypatch.setattr(background, "SLOW_S", 0.2)

    async def test() -> None:
        looks = Looks(FOUR)
        async with session(looks) as top:
            looks.hang()
            await top.until_shown("reading the black boxes has taken")
            await top.press("down", "down")
            assert 2 == top.chosen
            await top.press("enter")
            assert "by rank, ascending" in top.lines[0]
            looks.hang(False)
            looks.add(look_at(rank_of(0, step=77)))
            await top.until_shown(" 77 ")
            await top.until(lambda: "reading the black boxes" not in top.text)

    run(test)


def test_error_of_the_readings_ends_the_application() -> None:
    """An error that nothing has foreseen is handed to the caller, after the terminal is restored."""

    class Broken(Looks):
        def look(self) -> Look:
            """Return the next look, or fail after the last one."""
            if self.taken:
                raise OSError("no such device")
            return super().look()

    looks = Broken(FOUR)

    async def test() -> None:
        async with session(looks) as top:
            looks.hang()
            await top.until(lambda: top.app.return_value is not None)
        assert 1 == top.app.return_value
        assert "no such device" == str(top.app.failure)

    run(test)
    assert looks.closed.is_set()


def test_columns_follow_the_size_of_the_terminal() -> None:
    """A smaller terminal leaves columns out, and a larger one shows them again; any size works."""

    async def test() -> None:
        async with session(Looks(look_at(*map(rank_of, range(64))))) as top:
            for width, height in ((50, 20), (1, 1), (3, 40), (300, 2), (160, 30)):
                await top.pilot.resize_terminal(width, height)
                await top.press("end", "f1", "escape", "home")
                assert all(len(line) <= width for line in top.lines)
                if width == 50:
                    assert ["RANK", "STATE", "STEP", "STEP/S", "WAITING"] == top.lines[1].split()
            assert "LAST EVENT" in top.lines[1]

    run(test)


def test_without_colours_there_are_none() -> None:
    """NO_COLOR, and terminals without colours: rows differ by words, and the cursor by reversed characters."""

    async def test() -> None:
        screen = Screen(160, terminal=True, colours=False)
        async with session(Looks(look_at(dead_rank(0), rank_of(1))), terminal=screen) as top:
            styles = [
                segment.style
                for widget in top.widgets
                for y in range(widget.size.height)
                for segment in widget.render_line(y)
            ]
            assert {None} == {style.color for style in styles if style}
            assert any(style.reverse for style in styles if style)

    run(test)


def test_hostile_names_do_not_reach_the_terminal() -> None:
    """Control characters of names from a box are escaped on every screen."""

    async def test() -> None:
        bad = "\x1b]0;title\a\x9b31m\u202e"
        row = waiting_rank(0, 3, bad, activity=bad, host=bad, death=bad, value_name=bad, problem=bad)
        async with session(Looks(look_at(row, problems=[bad]))) as top:
            for keys in ([], ["enter"], ["escape"], ["f4", "x"]):
                await top.press(*keys)
                assert all(line.isprintable() for line in top.lines)
            assert "x1b" in top.text

    run(test)
