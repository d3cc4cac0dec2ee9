"""The keys of ``monitel top``: those that users of htop expect."""

from __future__ import annotations

import re

import pytest
from tests.support.inbox import DEADLINE
from tests.unit.console.terminal.app_driver import Key, Paste, run, session
from tests.unit.console.terminal.made_ranks import Looks, dead_rank, look_at, rank_of, waiting_rank

FOUR = look_at(rank_of(0), waiting_rank(1, 41), dead_rank(2), rank_of(3, rate=99.0))


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


def test_new_looks_do_not_move_the_list() -> None:
    """The list stays where it was scrolled to while the numbers change."""

    async def test() -> None:
        looks = Looks(look_at(*map(rank_of, range(64))))
        async with session(looks, height=20) as top:
            await top.press("end", "up")
            looks.add(look_at(*(rank_of(rank, step=777) for rank in range(64))))
            await top.until_shown(" 777 ")
            assert 62 == top.chosen
            assert any(line.startswith("  62    4062") for line in top.lines)

    run(test)


@pytest.mark.parametrize("key", ["f3", "slash"])
def test_search_moves_to_rows_that_contain_a_text(key: str) -> None:
    """F3 and / search while the text is typed; F3 goes to the next row; letters of other keys are text."""

    async def test() -> None:
        ranks = [dead_rank(rank) if rank in {2, 5} else rank_of(rank, activity="quiet") for rank in range(8)]
        async with session(Looks(look_at(*ranks))) as top:
            await top.press(key, *"sigk")
            assert 2 == top.chosen
            assert ["Search:", "sigk", "F3", "next", "match,", "Enter", "or", "Esc", "closes"] == top.lines[-1].split()
            await top.press("f3")
            assert 5 == top.chosen
            await top.press("f3")
            assert 2 == top.chosen
            await top.press("enter", "down")
            assert 3 == top.chosen
            await top.press(key, *"quip", "escape")
            assert top.lines[-1].startswith("Enter Detail")
            assert 3 == top.chosen

    run(test)


@pytest.mark.parametrize("key", ["f4", "backslash"])
def test_filter_hides_other_rows(key: str) -> None:
    """F4 and the backslash filter while the text is typed; Enter keeps the filter, and Esc removes it."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            await top.press(key, *"all_r", "enter")
            assert "filter 'all_r'" in top.lines[0]
            assert [["1", "4001"]] == [line.split()[:2] for line in top.lines if re.match(r" +\d+ +\d{4} ", line)]
            await top.press("escape")
            assert "filter" not in top.lines[0]
            assert "4000" in top.text
            await top.press(key, *"xyz", "escape")
            assert "filter" not in top.lines[0]

    run(test)


def test_text_can_be_corrected_and_pasted() -> None:
    """Backspace removes a character, Ctrl-U all; of a pasted text the printable characters are taken."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            await top.press("f4", *"alx", "backspace", "l")
            assert "filter 'all'" in top.lines[0]
            await top.press("ctrl+u", "ctrl+g", "left")
            assert "filter" not in top.lines[0]
            top.app.post_message(Paste("al\x1b[l\n"))
            await top.until_shown("filter 'al[l'")
            assert top.text.replace("\n", "").isprintable()

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


def test_order_is_changed_by_keys() -> None:
    """< and > choose the neighbouring column, N the process id, and I reverses the order."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            expected = {
                "greater_than_sign": "by pid, ascending",
                "less_than_sign": "by rank, ascending",
                "N": "by pid, ascending",
                "I": "by pid, descending",
            }
            for key, order in expected.items():
                await top.press(key)
                assert top.lines[0].endswith(order), key
            rows = [line.split()[1] for line in top.lines if re.match(r" +\d+ +\d{4} ", line)]
            assert ["4003", "4002", "4001", "4000"] == rows

    run(test)


def test_menu_chooses_the_column() -> None:
    """F6 opens a menu of the columns; Enter sorts by the chosen one, and Esc changes nothing."""

    async def test() -> None:
        async with session(Looks(FOUR)) as top:
            await top.press("f6", "down", "down", "down", "down", "enter")
            assert top.lines[0].endswith("by rate, descending")
            assert next(line for line in top.lines if re.match(r" +\d+ +\d{4} ", line)).startswith("   3 ")
            await top.press("f6", "down", "escape")
            assert top.lines[0].endswith("by rate, descending")

    run(test)


@pytest.mark.parametrize("key", ["p", "space", "Z"])
def test_pause_stops_the_refresh(key: str) -> None:
    """While it is paused, the screen says so, and shows the same numbers."""

    async def test() -> None:
        looks = Looks(look_at(rank_of(0, step=1)))
        async with session(looks) as top:
            await top.press(key)
            assert "PAUSED, p continues" in top.lines[0]
            looks.add(look_at(rank_of(0, step=222)))
            await top.until(lambda: looks.taken)
            await top.pilot.pause()
            assert "222" not in top.text
            await top.press(key)
            await top.until_shown(" 222 ")
            assert "PAUSED" not in top.lines[0]

    run(test)


@pytest.mark.parametrize("key", ["f1", "h", "question_mark"])
def test_help_lists_keys_and_columns(key: str) -> None:
    """The help has every key and every column, can be scrolled, and closes like htop's."""

    async def test() -> None:
        async with session(Looks(FOUR), height=70) as top:
            await top.press(key)
            for words in ("F3, /", "F4, \\", "F6", "PageUp, PageDown", "q, F10, Ctrl-C", "GOODPUT", "LAST EVENT"):
                assert words in top.text
            await top.press("q")
            assert "all_reduce" in top.text

    run(test)


@pytest.mark.parametrize("keys", [["q"], ["f10"], ["ctrl+c"], ["f4", "a", "ctrl+c"], ["h", "ctrl+c"], ["f6", "ctrl+c"]])
def test_quitting_ends_with_status_0(keys: list[str]) -> None:
    """Q and F10 quit from the list, and Ctrl-C from everywhere; the readings are closed."""
    looks = Looks(FOUR)

    async def test() -> None:
        async with session(looks) as top:
            await top.press(*keys)
        assert 0 == top.app.return_value

    run(test)
    assert looks.closed.wait(DEADLINE)
