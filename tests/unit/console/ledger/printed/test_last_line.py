"""The ledger that rank zero prints at its end."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.console.ledger.printed.run_times import LONG, run_time

import monitel
from monitel_otlp.ledger import wording
from monitel_otlp.ledger.last_line import last_line, print_last_line
from monitel_otlp.ledger.screen import Screen
from monitel_otlp.ledger.wording import sentence

if TYPE_CHECKING:
    from monitel_otlp.ledger.run_time import RunTime

FILE = Screen()
TERMINAL = Screen(80, terminal=True, colours=True)
PERCENT = re.compile(r"(\d+) %")


def test_last_line_without_a_terminal_is_one_plain_line() -> None:
    """Total, attempts, shares and the sentence."""
    expected = (
        "monitel ledger: 2 h 13 min in 3 attempts (step 58 %, data 38 %, startup 3 %, down 1 %); "
        "38 % of the time went into waiting for data"
    )
    assert expected == last_line(run_time(LONG, attempts=3), FILE)


def test_last_line_in_a_terminal_is_a_bar() -> None:
    """Each part has its character and its colour in the bar and in the legend; a share below 1 % is left out."""
    bar = "\x1b[32m" + 44 * "█" + "\x1b[0m\x1b[31m" + 29 * "▓" + "\x1b[0m\x1b[33m▒▒▒▒\x1b[0m\x1b[34m░\x1b[0m"
    legend = (
        "\x1b[32m█\x1b[0m step 58 %  \x1b[31m▓\x1b[0m data 38 %  \x1b[33m▒\x1b[0m startup 3 %  "
        "\x1b[34m░\x1b[0m down 1 %"
    )
    expected = ["monitel ledger: 2 h 13 min in 3 attempts", bar, legend, "38 % of the time went into waiting for data"]
    assert "\n  ".join(expected) == last_line(run_time(LONG, attempts=3), TERMINAL)


def test_many_small_parts_are_one_part_of_the_bar() -> None:
    """The bar has four parts, and the line six; the last one is the rest."""
    run = run_time({"step": 50.0, "data": 20.0, **dict.fromkeys("abcde", 6.0)})
    legend = last_line(run, Screen(80, terminal=True)).splitlines()[2]
    assert "  █ step 50 %  ▓ data 20 %  ▒ a 6 %  ░ the rest 24 %" == legend
    assert "(step 50 %, data 20 %, a 6 %, b 6 %, c 6 %, the rest 12 %)" in last_line(run, FILE)


def test_last_line_in_a_narrow_terminal_without_colours_and_blocks() -> None:
    """No line is wider than the terminal."""
    expected = """\
monitel ledger: 2 h 13 min in 3 attempts
  #####################==============--.
  # step 58 %  = data 38 %
  - startup 3 %  . down 1 %
  38 % of the time went into waiting for
  data"""
    screen = Screen(40, terminal=True, encoding="ascii")
    assert expected == last_line(run_time(LONG, attempts=3), screen)


@given(
    st.dictionaries(st.text(min_size=1, max_size=70), st.integers(1, 10**17), min_size=1, max_size=70),
    st.integers(60, 80),
    st.sampled_from(["utf-8", "ascii"]),
)
def test_bar_fills_its_line(activities: dict[str, int], width: int, encoding: str) -> None:
    """Whatever the names of activities are, the bar is as wide as the terminal, and all lines are printable."""
    run = _run(activities)
    lines = last_line(run, Screen(width, terminal=True, encoding=encoding)).split("\n")
    assert width == len(lines[1])
    assert {2} == {len(line) - len(line.lstrip()) for line in lines[1:]}
    assert all(line.isprintable() for line in lines)
    assert last_line(run, Screen(encoding=encoding)).isprintable()


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**17), min_size=1, max_size=70))
def test_printed_shares_add_up_to_100(activities: dict[str, int]) -> None:
    """The shares in the plain line and in the legend of the bar are 100 % together."""
    run = _run(activities)
    (shares,) = re.findall(r"\((.*)\)", last_line(run, FILE))
    assert 100 == sum(map(int, PERCENT.findall(shares)))
    words = " ".join(last_line(run, Screen(80, terminal=True)).split())
    legend = words.removesuffix(sentence(run, FILE))
    assert len(legend) < len(words)
    assert 100 == sum(map(int, PERCENT.findall(legend)))


def _run(activities: dict[str, int]) -> RunTime:
    return run_time({})._replace(activities=activities, elapsed_ns=sum(activities.values()))


@pytest.mark.parametrize("name", [*monitel.activities.ACTIVITIES, "down", "lost"])
def test_each_activity_has_a_phrase(name: str) -> None:
    """The sentence of each activity of monitel is in words, not in the name of the activity."""
    assert name in wording._PHRASES


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"step": 62, "data": 38}, "38 % of the time went into waiting for data"),
        ({"step": 50, "data": 20, "compile": 30}, "30 % of the time went into compilation"),
        ({"step": 50, "startup": 50}, "50 % of the time went into starting up"),
        ({"step": 50, "checkpoint.save": 50}, "50 % of the time went into saving checkpoints"),
        ({"step": 50, "down": 50}, "50 % of the time went into downtime between attempts"),
        ({"step": 50, "lost": 50}, "50 % of the time went into steps that had to be repeated after a restart"),
        ({"step": 50, "stuck": 50}, "50 % of the time went into waits that were stuck"),
        ({"step": 5, "other": 95}, "95 % of the time went into work that belongs to no activity"),
        ({"step": 60, "tokenize": 40}, '40 % of the time went into the activity "tokenize"'),
        ({"step": 60, "\x1b[2J": 40}, '40 % of the time went into the activity "\\x1b[2J"'),
        (
            {"step": 97, "data": 2, "init": 1},
            "97 % of the time went into steps; the largest loss is waiting for data (2 %)",
        ),
        ({"step": 999, "data": 1}, "100 % of the time went into steps; no loss reaches 1 %"),
        ({"step": 100}, "100 % of the time went into steps; no loss reaches 1 %"),
        ({"startup": 1, "evaluation": 9}, "90 % of the time went into evaluation; goodput is undefined without steps"),
        ({"startup": 1}, "100 % of the time went into starting up; goodput is undefined without steps"),
        ({}, "no time was recorded; goodput is undefined without steps"),
        ({"step": 0, "data": 1}, "100 % of the time went into waiting for data"),
    ],
)
def test_sentence_names_the_largest_loss(seconds: dict[str, float], expected: str) -> None:
    """Time in steps is not a loss; without steps there is no goodput."""
    assert expected == sentence(run_time(seconds), FILE)


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [
        ({}, 0),
        ({"startup": 3.0, "shutdown": 1.0}, 0),
        ({"startup": 3.0, "down": 1.0, "shutdown": 1.0, "step": 0.0}, 0),
        ({"startup": 3.0, "evaluation": 1.0}, 1),
        ({"startup": 3.0, "step": 1.0}, 1),
    ],
)
def test_run_that_did_nothing_prints_nothing(
    seconds: dict[str, float], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process without a step or an activity has nothing to report."""
    print_last_line(lambda: run_time(seconds))
    printed = capsys.readouterr()
    assert ("", lines) == (printed.out, len(printed.err.splitlines()))
    assert printed.err.endswith("\n" * lines)


def test_last_line_survives_a_broken_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed, missing or failing stderr does not disturb the exit."""

    class Failing(io.StringIO):
        def write(self, _text: str) -> int:
            raise RuntimeError("reentrant call")

    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, Failing()):
        monkeypatch.setattr(sys, "stderr", stream)
        print_last_line(lambda: run_time(LONG))
