"""Output of what processes have left as OTLP JSON, one request per line. Nothing is locked or changed."""

from __future__ import annotations

import argparse
import base64
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from monitel.blackbox.discovery import find_spools
from monitel.blackbox.folder import FolderError, check_platform
from monitel.text import show, warn
from monitel_otlp.commands.replay import nothing_left
from monitel_run.arguments import target


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("cat", help="print spooled telemetry as OTLP JSON lines")
    command.add_argument("dir", metavar="DIR", type=target, help="a spool folder, or a folder that holds spool folders")
    command.set_defaults(run=_cat, interrupted="interrupted")


def _cat(arguments: argparse.Namespace) -> int:
    """Print what no backend has acknowledged of every record below a folder, in the requests that replay would send."""
    from google.protobuf.message import DecodeError  # late: the help needs no OpenTelemetry

    from monitel_otlp.export.records import oldest_first  # late, as above

    check_platform()
    found = find_spools(Path(arguments.dir))
    problems = list(found.problems)
    if not (found.folders or problems):
        raise FolderError(nothing_left(repr(arguments.dir), found))
    for path in oldest_first(found.folders):
        try:
            if unreadable := _print(path):
                problems.append(f"{str(path)!r} is damaged: {unreadable:,} of its items cannot be read")
        except BrokenPipeError:
            raise
        except (FolderError, OSError) as error:
            problems.append(str(error))
        except (ValueError, TypeError, DecodeError) as error:  # its checksums are right
            problems.append(f"{str(path)!r} cannot be read: {error}")
    for problem in problems:
        warn(problem)
    return 1 if problems else 0


def _print(path: Path) -> int:
    """Print the requests of a record, and return the number of its items that cannot be read."""
    from monitel_otlp.export.records import damaged_ends, peek, peeked  # late, as above

    for attempt in range(_ATTEMPTS):
        try:
            dead = peek(path)
            break
        except FileNotFoundError:  # its process has removed a file meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
    with closing(dead):
        damaged = damaged_ends(dead)
        for signal, body in peeked(dead):
            show(json_line(signal, body))
        unreadable = (journal.account().dropped.get("unreadable", 0) for journal in dead.journals.values())
        return damaged + sum(unreadable)


_ATTEMPTS = 5
_IDS = {"traceId", "spanId", "parentSpanId"}


def json_line(signal: str, body: bytes) -> str:
    """Return a request as one line, with ids in hex and enums as integers, as the OTLP specification requires."""
    from google.protobuf.json_format import MessageToDict  # late, as above

    from monitel_otlp.messages.request import REQUESTS  # late, as above

    message = MessageToDict(REQUESTS[signal].FromString(body), use_integers_for_enums=True)
    line = json.dumps(_with_hex_ids(message), ensure_ascii=False, separators=(",", ":"))
    return line if line.isprintable() else "".join(map(_printable, line))


def _printable(character: str) -> str:
    """Return a character, or its escape sequence in JSON: it could control a terminal."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[begin : begin + 4]}" for begin in range(0, len(units), 4))


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: base64.b64decode(each).hex() if key in _IDS and isinstance(each, str) else _with_hex_ids(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    return value
