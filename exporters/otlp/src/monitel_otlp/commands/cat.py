"""Output of spooled telemetry as OTLP JSON, one request per line. Nothing is locked or removed."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from monitel_otlp.commands.output import show, warn
from monitel_otlp.commands.replay import Places, nothing_left
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.messages.request import FrozenRequest


def cat(root: Path, *, foreign: bool = False) -> int:
    """Print every request below a folder, including the requests that raw segments are decoded into.

    Args:
        root: A spool, or a folder that holds spools.
        foreign: Also read folders of other users.

    Returns:
        The exit status: 0 if everything could be read.

    Raises:
        SpoolError: There is no spool.
    """
    found = find_spools(root)
    problems = list(found.problems)
    if not (found.folders or problems):
        raise SpoolError(nothing_left(Places(root, ()), found))
    complete = True
    for folder in found.folders:
        spool = Spool(folder, foreign=foreign)
        try:
            for request in spool.peek():
                try:
                    show(json_line(request))
                except DecodeError as error:  # its checksum is right
                    problems.append(f"a request of the {request.signal} in {str(folder)!r} is not a message: {error}")
        except BrokenPipeError:
            raise
        except (SpoolError, OSError) as error:
            problems.append(str(error))
        complete = complete and not spool.problems
    for problem in problems:
        warn(problem)
    return 0 if complete and not problems else 1


_IDS = {"traceId", "spanId", "parentSpanId"}


def json_line(request: FrozenRequest) -> str:
    """Return a request as one line, with ids in hex and enums as integers, as the OTLP specification requires."""
    message = MessageToDict(request.message(), use_integers_for_enums=True)
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
