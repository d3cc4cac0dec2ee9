"""Output of spooled telemetry as OTLP JSON, one request per line. Nothing is locked or removed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monitel_otlp.commands.replay import nothing_left
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
        raise SpoolError(nothing_left(root, found))
    complete = True
    for folder in found.folders:
        spool = Spool(folder, foreign=foreign)
        try:
            for request in spool.peek():
                print(json_line(request))
        except BrokenPipeError:
            raise
        except (SpoolError, OSError) as error:
            problems.append(str(error))
        complete = complete and not spool.problems
    for problem in problems:
        print(f"monitel_otlp: {problem}", file=sys.stderr)
    return 0 if complete and not problems else 1
