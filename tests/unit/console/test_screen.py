"""The screens of ``monitel top`` around the list: one process, help, other sizes, and readings that hang or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.console.app_driver import Key, run, session
from tests.unit.console.made_ranks import Looks, dead_rank, look_at, rank_of, waiting_rank

from monitel_otlp.ledger.screen import Screen
from monitel_otlp.terminal import background

if TYPE_CHECKING:
    import pytest


FOUR = look_at(rank_of(0), waiting_rank(1, 41), dead_rank(2), rank_of(3, rate=99.0))


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


def test_first_screen_shows_every_rank() -> None:
    """The list has a summary, the titles, the heading, the verdict, a row a rank, and the keys."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            lines = top.lines
            assert lines[0].endswith("1 job, 4 processes: 3 alive, 1 dead  by rank, ascending")
            assert ["RANK", "PID", "STATE", "STEP"] == lines[1].split()[:4]
            assert "llm, run run-7, 4 of 4 ranks, on n04" == lines[2]
            assert [["0", "4000"], ["1", "4001"], ["2", "4002"]] == [line.split()[:2] for line in lines[4:7]]
            assert "41 s all_reduce" in lines[5]
            assert "killed by SIGKILL" in lines[7]
            assert "Enter Detail  F1 Help  F3 Search  F4 Filter  F6 Sort  p Pause  F10 Quit" == lines[-1]

    run(test)


def test_arrows_and_pages_move_the_cursor() -> None:
    """The cursor moves by rows and by pages, to the ends, and the list scrolls with it."""

    async def test() -> None:
        async with session(Looks(look_at(*map(rank_of, range(64)))), height=20) as top:
            await top.press("down", "down", "up")
            assert 1 == top.chosen
            await top.press("pagedown")
            assert 17 == top.chosen
            assert any(line.startswith("  17    4017") for line in top.lines)
            await top.press("end")
            assert 63 == top.chosen
            assert any(line.startswith("  63    4063") for line in top.lines)
            await top.press("pageup")
            assert 47 == top.chosen
            await top.press("home")
            assert 0 == top.chosen
            assert any(line.startswith("llm, run run-7") for line in top.lines)

    run(test)


def test_search_moves_to_rows_that_contain_a_text() -> None:
    """F3 searches while the text is typed; F3 goes to the next row; letters of other keys are text."""

    async def test() -> None:
        ranks = [dead_rank(rank) if rank in {2, 5} else rank_of(rank, activity="quiet") for rank in range(8)]
        async with session(Looks(look_at(*ranks))) as top:
            await top.press("f3", *"sigk")
            assert 2 == top.chosen
            assert ["Search:", "sigk", "F3", "next", "match,", "Enter", "or", "Esc", "closes"] == top.lines[-1].split()
            await top.press("f3")
            assert 5 == top.chosen
            await top.press("f3")
            assert 2 == top.chosen
            await top.press("enter", "down")
            assert 3 == top.chosen
            await top.press("f3", *"quip", "escape")
            assert top.lines[-1].startswith("Enter Detail")
            assert 3 == top.chosen

    run(test)


def test_keys_do_not_overtake_each_other() -> None:
    """Keys that are pressed faster than they are handled have the effect of slow ones."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            for key in ("f4", *"all", "enter", "f1", "q", "I", "f6", "down", "enter", "f10", "f1", "h"):
                top.app.post_message(Key(key, key if len(key) == 1 else None))
            await top.until(lambda: top.app.return_value is not None)
            assert ("all", "by pid, ascending") == (top.listing.filter, top.listing.order)

    run(test)


def test_pause_stops_the_refresh() -> None:
    """While it is paused, the screen says so, and shows the same numbers."""

    async def test() -> None:
        looks = Looks(look_at(rank_of(0, step=1)))
        async with session(looks) as top:
            await top.press("p")
            assert "PAUSED, p continues" in top.lines[0]
            looks.add(look_at(rank_of(0, step=222)))
            await top.until(lambda: looks.taken)
            await top.pilot.pause()
            assert "222" not in top.text
            await top.press("p")
            await top.until_shown(" 222 ")
            assert "PAUSED" not in top.lines[0]

    run(test)
