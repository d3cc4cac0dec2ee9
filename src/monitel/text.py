"""Text for people and for programs: the stream that it is printed to, lines, numbers, durations, times, and JSON."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from monitel.runs.process import Process

UNLIMITED = 10_000  # columns of a table that is not printed to a terminal: nothing is cut

_WIDTH = 80  # columns of a text; wider lines are hard to read
_LEAST_WIDTH = 20
_LONGEST = 10_000  # characters of a text from outside
# A word of a text, or one of our commands with its options, paths and addresses.
_WORD = re.compile(r"""monitel \w+(?: (?:'[^']*'(?:"'"'[^']*')*|(?:--|/|https?:)\S*))*\S*|\S+""")
_LABEL = 15  # columns of the labels
_LEAST_NAME, _GAP = 12, "  "  # columns of the first column of a narrow table, and the space between two columns
_OTLP = "OTEL_EXPORTER_OTLP_"
_PLAIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:\d+)?(/[^?#@]*)?", re.IGNORECASE)  # nothing secret
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Screen(NamedTuple):
    """The columns of a stream."""

    width: int = _WIDTH  # of a line of a text
    columns: int = UNLIMITED  # of a line of a table: all those of a terminal

    @classmethod
    def of(cls, stream: TextIO | None) -> Screen:
        """Return the columns of a stream, which the variable COLUMNS may give."""
        try:
            columns = os.get_terminal_size(stream.fileno()).columns if stream is not None and stream.isatty() else 0
        except (OSError, ValueError):  # closed, or not a file
            columns = 0
        given = os.environ.get("COLUMNS", "")
        if given.isascii() and given.isdecimal() and 0 < int(given) < UNLIMITED:
            columns = int(given)
        columns = max(columns - 1, _LEAST_WIDTH) if columns else UNLIMITED  # some terminals wrap a full line
        return cls(min(columns, _WIDTH), columns)


def printable(text: str) -> str:
    """Return text from outside as it may be printed: one line, truncated, without control characters."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text) - _LONGEST:,} more characters)"
    return escaped(text)


def escaped(text: str) -> str:
    """Return a whole text without control characters."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def columns_of(text: str) -> int:
    """Return the columns that a printable text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_columns_of_character, text))


@lru_cache(maxsize=1024)
def _columns_of_character(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def cut(text: str, columns: int) -> str:
    """Return a text of at most this many columns; two dots take the place of its rest."""
    if columns_of(text) <= columns:
        return text
    kept = used = 0
    for each in text:
        used += columns_of(each)
        if used > columns - 2:
            break
        kept += 1
    return f"{text[:kept]}.."


def pad(text: str, columns: int) -> str:
    """Return a text of exactly this many columns, cut or followed by spaces."""
    text = cut(text, columns)
    return text + (columns - columns_of(text)) * " "


def pieces(text: str, columns: int) -> list[str]:
    """Return a printable text in pieces of at most this many columns; at least one piece."""
    found, piece, used = [], "", 0
    for each in text:
        size = columns_of(each)
        if piece and used + size > columns:
            found.append(piece)
            piece, used = "", 0
        piece += each
        used += size
    return [*found, piece]


def wrapped(text: str, columns: int, *, widest: int = 0) -> list[str]:
    """Return the lines of a printable text, broken at spaces, and in longer words that are wider than ``widest``.

    A command is not broken, so that it can be pasted: a longer line is wrapped by the terminal.
    """
    lines = [""]
    for word in _WORD.findall(text):
        if lines[-1] and columns_of(lines[-1]) + 1 + columns_of(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines += [word] if word.startswith("monitel ") else pieces(word, max(columns, widest))
    return [line for line in lines if line]


def table(rows: Sequence[Sequence[str]], width: int, right: Collection[str]) -> Iterator[str]:
    """Yield the lines of rows, the titles first.

    To fit, a name in the first column that is too long has separate lines, and the last columns are left out.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    while len(widths) > 1 and min(widths[0], _LEAST_NAME) + sum(each + len(_GAP) for each in widths[1:]) > width:
        widths.pop()
    widths[0] = max(min(widths[0], width - sum(each + len(_GAP) for each in widths[1:])), 1)
    for name, *others in rows:
        is_long = columns_of(name) > widths[0]
        yield from pieces(name, width) if is_long else ()
        if is_long and not any(others[: len(widths) - 1]):
            continue
        cells = (
            each.rjust(columns) if title in right else pad(each, columns)
            for title, each, columns in zip(rows[0], ("" if is_long else name, *others), widths, strict=False)
        )
        yield _GAP.join(cells).rstrip()
    if missing := [title for title in rows[0][len(widths) :] if title]:
        yield from wrapped(f"no room for {', '.join(missing)}: use a wider terminal, or `| cat`", width)


def labelled(label: str, text: str, width: int, indent: int = _LABEL, *, widest: int = 0) -> Iterator[str]:
    """Yield the lines of a printable text behind a label. An empty text gives no line."""
    if text and columns_of(label) >= indent:
        yield label
        label = ""
    for line in wrapped(text, width - indent, widest=widest - indent):
        yield f"{label:<{indent}}{line}".rstrip()
        label = ""


def number(value: float, columns: int = 10) -> str:
    """Return a number with at most six digits, unless it is whole, in this many characters: ``0.25``, ``1,200``."""
    value = float(value)
    if value.is_integer() and len(whole := f"{int(value):,}") <= columns:
        return whole
    return next((shown for digits in (6, 5, 4) if len(shown := f"{value:.{digits}g}") <= columns), f"{value:.3g}")


def per_second(rate: float) -> str:
    """Return a rate with three digits, or those before the point: ``0.0123``, ``8.25``, ``1,234``."""
    return number(round(rate), 7) if math.isfinite(rate) and rate >= 999.5 else f"{rate:.3g}"  # noqa: PLR2004


def step_rate(rate: float) -> str:
    """Return the rate of steps, such as ``8.33 steps/s``; below one per second their time: ``2.5 s per step``."""
    return f"{per_second(1 / rate)} s per step" if rate < 1 else f"{per_second(rate)} steps/s"


def percent(share: float) -> str:
    """Return a share in percent, such as ``<1 %`` or ``26 %``."""
    if not math.isfinite(share):
        return number(share)
    return "<1 %" if 0 < share < 5e-3 else f"{100 * share:.0f} %"  # noqa: PLR2004  half a percent


def bytes_in_words(size: float) -> str:
    """Return a number of bytes, such as ``512 MiB`` or ``1.5 GiB``."""
    power = next((each for each in (1, 2, 3) if abs(size) < 999.5 * 1024**each), 4)  # three digits
    return f"{size / 1024**power:.3g} {' KMGT'[power]}iB"


def duration(time_ns: float) -> str:
    """Return a time: three digits below a minute, such as ``800 ms``, from there two units: ``2 h 13 min``."""
    if not math.isfinite(time_ns):
        return number(time_ns)
    value = max(time_ns, 0) / 1e9
    if value < 59.95:  # noqa: PLR2004  three digits
        value, unit = (value * 1000, "ms") if value < 0.9995 else (value, "s")  # noqa: PLR2004  or rounding adds one
        return "<0.01 ms" if 0 < value < 0.005 else f"{round(value, 2):.3g} {unit}"  # noqa: PLR2004
    seconds = round(value) if value < 3600 else round(value / 60) * 60  # noqa: PLR2004  else 23:59:40 is 24 h
    (name, size), (smaller, smaller_size) = next(each for each in pairwise(_UNITS) if seconds >= each[0][1])
    rounded = (seconds + smaller_size // 2) // smaller_size * smaller_size
    rest = rounded % size // smaller_size
    return f"{rounded // size} {name}{f' {rest} {smaller}' if rest else ''}"


def clock_time(time_ns: int) -> str:
    """Return the local time of a day."""
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def moment(time_ns: int) -> str:
    """Return the local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))


def named(processes: Sequence[Process], limit: int = 4) -> str:
    """Return processes in words, such as ``ranks 0-6 and 8``; without the rank of each ``process 4711``."""
    ranks = sorted({each.rank for each in processes if each.rank is not None})
    if len(ranks) < len(processes):
        return f"process {processes[0].pid}" if len(processes) == 1 else f"{len(processes):,} processes"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [part for run in runs for part in ([run] if len(run) > 2 else [[rank] for rank in run])]  # noqa: PLR2004
    shown = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts[:limit]]
    if more := sum(map(len, parts[limit:])):
        shown.append(f"{more} more")
    words = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def phrase(processes: Sequence[Process], singular: str, plural: str) -> str:
    """Return processes in words, and the form of a verb for them."""
    return f"{named(processes)} {singular if len(processes) == 1 else plural}"


def replay_command(folder: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the command that delivers what is in a folder, with the endpoint: it may be pasted into another shell.

    Without a valid endpoint, or where it has a password or a query, the user has to fill it in.
    """
    from monitel.process.masking import mask_text  # late: it is rarely needed

    command, place = f"monitel replay {shlex.quote(folder)}", environment.get(f"{_OTLP}ENDPOINT", "").strip()
    if any(f"{_OTLP}{signal}_ENDPOINT" in environment for signal in ("METRICS", "LOGS", "TRACES")):
        return command  # one option is not enough
    is_plain = _PLAIN.fullmatch(place) and mask_text(place, environment) == place
    return f"{command} --endpoint {shlex.quote(place) if is_plain else 'http://HOST:4318'}"


def near(path: Path) -> str:
    """Return a path as a user writes it: relative to the present folder, if that is the shell's, and contains it."""
    with suppress(OSError, ValueError):
        if Path(os.environ.get("PWD", "")).samefile(""):  # the program may have changed it, as Hydra does
            return str(path.relative_to(Path.cwd()))
    return str(path)


def counted(number_of: int, noun: str, plural: str = "s") -> str:
    """Return a number of things in words: ``1 item``, ``1,200 items``."""
    return f"{number_of:,} {noun}{'' if number_of == 1 else plural}"


def rfc3339(time_ns: int | None) -> str | None:
    """Return a time by RFC 3339 in UTC; None for an unknown or impossible one."""
    try:
        when = _EPOCH + timedelta(microseconds=(time_ns or 0) // 1000)
    except OverflowError:
        return None
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if when > _EPOCH else None


def to_json(report: Any, *, indent: int | None = 2) -> str:
    """Return a report as ASCII."""
    text = json.dumps(json_value(report), indent=indent, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # the only control character that is not escaped


def json_value(value: Any) -> Any:
    """Return a value in the types of JSON. Numbers that it does not have are strings: NaN, Infinity and -Infinity."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): json_value(each) for key, each in value.items()}
    return [json_value(each) for each in value]


# ---- output of commands: each line goes through show() or warn(), which escape control characters of names and paths.
# main() makes stdout escape what it cannot encode, as stderr does.


class CommandError(Exception):
    """Raised for arguments that a command cannot use, or if it has no screen. The message contains advice."""


class OutputError(Exception):
    """Raised if stdout cannot be written. The message contains the reason."""


def show(text: str, *, flush: bool = False) -> None:
    """Print lines to stdout; raises BrokenPipeError if nobody reads it any more, else OutputError."""
    with _stdout() as stream:
        stream.write(f"{_safe(text)}\n")
    if flush:
        write_out()


def write_out() -> None:
    """Write everything that was shown; the errors are those of :func:`show`."""
    with _stdout() as stream:
        stream.flush()


@contextmanager
def _stdout() -> Iterator[TextIO]:
    if sys.stdout is None:
        raise OutputError("stdout is closed: the output of this command needs it")
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}") from None


def warn(message: object, program: str = "monitel") -> None:
    """Print a problem to stderr, if that can be written, with the name of the program before it unless it is empty."""
    if (stream := sys.stderr) is not None:
        with suppress(Exception):  # it is closed, or full, or a signal handler has interrupted a write
            text = _safe(f"{program}: {message}" if program else str(message)) + "\n"
            stream.flush()
            if sys.__stderr__ is not None and stream is sys.__stderr__:  # its buffer would change the exit status
                os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
            else:
                stream.write(text)
                stream.flush()


def _safe(text: str) -> str:
    """Return lines without control characters."""
    return "\n".join(map(escaped, text.split("\n")))
