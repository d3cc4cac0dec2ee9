"""Text: its characters and columns, numbers, durations and times; the output and the arguments of commands."""

import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import Program

from monitel.text import (
    UNLIMITED,
    Screen,
    bytes_in_words,
    columns_of,
    duration,
    labelled,
    number,
    pad,
    per_second,
    percent,
    replay_command,
    show,
    warn,
    wrapped,
)


def test_columns_of_characters() -> None:
    """A wide character takes two columns, and a combining one none."""
    assert [1, 2, 1, 6] == [columns_of(each) for each in ("a", "日", "e\u0301", "日本語")]
    assert ["日本.. ", "日本語 "] == [pad("日本語語", 7), pad("日本語", 7)]


def test_lines_are_broken_at_spaces_and_long_words_where_they_must() -> None:
    """A path that is to be copied stays whole."""
    text = "the spool /a/very/long/path of rank 3"
    assert ["the spool", "/a/very/lon", "g/path of", "rank 3"] == wrapped(text, 11)
    assert ["the spool", "/a/very/long/path", "of rank 3"] == wrapped(text, 11, widest=17)
    assert [] == wrapped(" ", 11)
    assert ["exception", "  one", "  two"] == [*labelled("exception", "one two", 6, 2)]
    assert [] == [*labelled("exception", "", 6, 2)]
    for path in ("/a folder/of it", "/a folder/that's of 'it'"):
        command = f"monitel replay {shlex.quote(path)} --endpoint http://HOST:4318"
        assert ["deliver with:", f"{command};", "then go on"] == wrapped(f"deliver with: {command}; then go on", 16)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, " --endpoint http://HOST:4318"),
        ({"ENDPOINT": "http://backend:4318/a&b"}, " --endpoint 'http://backend:4318/a&b'"),
        ({"ENDPOINT": "http://[::1]:4318"}, " --endpoint 'http://[::1]:4318'"),
        *(
            ({"ENDPOINT": each}, " --endpoint http://HOST:4318")
            for each in (
                "http://me:se@backend",
                "me:se@backend:4318",
                "http://backend?x=se",
                "http://me:s#e",
                "http://",
            )
        ),
        ({"ENDPOINT": "http://backend", "LOGS_ENDPOINT": "http://loki"}, ""),
    ],
)
def test_command_that_delivers_names_the_endpoint(variables: dict[str, str], expected: str) -> None:
    """So it can be pasted into a shell without the variable; a password is not shown."""
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    assert f"monitel replay '/my runs'{expected}" == replay_command("/my runs", environment)


@pytest.mark.parametrize(
    ("columns", "given", "expected"),
    [(0, "", (80, UNLIMITED)), (0, "60", (59, 59)), (200, "", (80, 199)), (40, "", (39, 39)), (200, "60", (59, 59))],
)
def test_tables_have_all_columns_of_a_terminal_and_are_not_cut_in_a_file(
    monkeypatch: pytest.MonkeyPatch, columns: int, given: str, expected: tuple[int, int]
) -> None:
    """Texts have 80 columns at most. ``COLUMNS`` comes before the terminal."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
    monkeypatch.setenv("COLUMNS", given)
    terminal: Any = SimpleNamespace(isatty=lambda: True, fileno=lambda: 1)
    screen = Screen.of(terminal if columns else StringIO())
    assert expected == (screen.width, screen.columns)


@pytest.mark.parametrize(
    ("time_ns", "words"),
    [
        *[(0, "0 ms"), (1, "<0.01 ms"), (9_996_000, "10 ms"), (99_999_999, "100 ms"), (999_600_000, "1 s")],
        *[(9_996_000_000, "10 s"), (59_960_000_000, "1 min"), (99_960_000_000, "1 min 40 s")],
        *[(3600 * 10**9 - 1, "1 h"), (133 * 60 * 10**9, "2 h 13 min"), (86_390 * 10**9, "1 d"), (float("nan"), "nan")],
    ],
)
def test_durations_have_three_digits_or_two_units(time_ns: float, words: str) -> None:
    """Rounding does not add a digit."""
    assert words == duration(time_ns)


def test_numbers_rates_and_shares_beside_their_limits() -> None:
    """Small ones are not shown as nothing, and rounding does not add a digit."""
    numbers = (1 / 3, 99_999_999, 123_456_789, 12_345_678.9, -1.23456789e-5, float("-inf"))
    assert ["0.333333", "99,999,999", "1.2346e+08", "1.2346e+07", "-1.235e-05", "-inf"] == [*map(number, numbers)]
    assert ["0.999", "1", "10", "1,000", "99,999", "nan"] == [
        *map(per_second, (0.9994, 1.0, 9.996, 999.9, 99_999.0, float("nan")))
    ]
    assert ["0 %", "<1 %", "<1 %", "1 %", "100 %", "nan"] == [
        *map(percent, (0.0, 1e-9, 0.00499, 0.0051, 0.996, float("nan")))
    ]


def test_bytes_have_three_digits() -> None:
    sizes = {0: "0 KiB", 512: "0.5 KiB", 1023 << 10: "0.999 MiB", 900 << 20: "900 MiB", 3 << 39: "1.5 TiB"}
    assert [*sizes.values()] == [*map(bytes_in_words, sizes)]
    assert "-2 GiB" == bytes_in_words(-(2 << 30))


def test_control_characters_are_escaped() -> None:
    """In lines and in messages; lines stay lines."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        show("one \x1b]0;owned\x07\ntwo 数据 \x9b")
        warn(ValueError("\x1b[2J"))
    assert "one \\x1b]0;owned\\x07\ntwo 数据 \\x9b\n" == output.getvalue()
    assert "monitel: \\x1b[2J\n" == errors.getvalue()


@pytest.mark.parametrize("command", ["top ", "top --once 4711 ", "autopsy ", "compare a ", "ledger "])
def test_empty_target_is_an_error(command: str, program: Program) -> None:
    """Such as that of an unset variable: it is not the current folder."""
    assert "empty" in program(*command.split(" "), status=2).stderr
