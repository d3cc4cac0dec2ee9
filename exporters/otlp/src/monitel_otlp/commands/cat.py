"""Output of spooled telemetry as OTLP JSON, one request per line. Nothing is locked or removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monitel_otlp.commands.output import show, warn
from monitel_otlp.commands.replay import Places, nothing_left
from monitel_otlp.messages.json_lines import json_line
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from pathlib import Path


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
