"""The events of one attempt to run a command: ``attempt.started`` and ``attempt.ended``."""

from __future__ import annotations

import marshal
import os
import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from monitel.attributes import escape_surrogates
from monitel.blackbox.box import Box
from monitel.blackbox.death import signal_name
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.record import EVENT
from monitel.launcher import LAUNCHERS
from monitel_otel.scope import SCOPE
from monitel_otlp.configuration import describe_process
from monitel_otlp.messages.attributes import plain_attributes
from monitel_otlp.messages.resource import encode_resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from monitel.console.run.parent import Ended
    from monitel.console.run.process_watch import ProcessEnd
    from monitel_otlp.messages.attributes import Plain

STARTED, ENDED = "attempt.started", "attempt.ended"

_INFO, _ERROR = 9, 17
_PATIENCE_S = 2.0  # with the disk
_MODULE = re.compile(r"[A-Za-z_][\w.]*")


def program_and_script(command: Sequence[str]) -> str:
    """Return the program of a command, and its script or module. Other arguments may hold secrets."""
    shown = [os.path.basename(command[0])]
    runs_modules = shown[0].startswith("python") or shown[0] in LAUNCHERS
    for before, argument in pairwise(command):
        if runs_modules and before == "-m" and _MODULE.fullmatch(argument):
            shown += ["-m", argument]
            break
        if not argument.startswith("-") and os.path.isfile(argument):
            shown.append(argument)
            break
    return escape_surrogates(" ".join(shown))


def started(command: Sequence[str], began_ns: int, repository: Mapping[str, Plain]) -> LogRecord:
    """Return the event of the start."""
    return _event(STARTED, began_ns, _INFO, {"run.command": program_and_script(command), **repository})


def ended(command: Sequence[str], end: Ended, ends: Sequence[ProcessEnd]) -> LogRecord:
    """Return the event of the end.

    Args:
        command: The command.
        end: Its end.
        ends: The ends of its processes, in their order.
    """
    attributes: dict[str, Plain] = {"run.command": program_and_script(command)}
    if os.WIFSIGNALED(end.status):
        attributes["process.exit.signal"] = signal_name(os.WTERMSIG(end.status))
    else:
        attributes["process.exit.code"] = os.WEXITSTATUS(end.status)
    attributes["run.duration"] = max(0, end.ended_ns - end.began_ns) / 1e9
    first = next((each for each in ends if each.status), None)
    if first is not None and first.status:
        attributes["attempt.first_death"] = _end_in_words(first.status)
        attributes["attempt.first_death.pid"] = first.process.pid
        if first.process.rank:
            attributes["attempt.first_death.rank"] = int(first.process.rank)
    return _event(ENDED, end.ended_ns, _ERROR if end.status else _INFO, attributes)


def write_events(events: Sequence[LogRecord], spool: Path, mark: str) -> Path:
    """Write events to a new record of an ended process, with the resource of this process.

    Args:
        events: The events.
        spool: The folder that holds the spool folders.
        mark: The mark of the endpoints.

    Returns:
        The record.

    Raises:
        OSError: It could not be written.
    """
    resource = describe_process()
    identity = {
        "resource": encode_resource(resource),
        "attributes": plain_attributes(resource.attributes),
        "scope": tuple(SCOPE),
    }
    box = Box(spool, None, identity, mark=mark)
    for event in events:
        box.journals["logs"].append(EVENT, marshal.dumps(tuple(event), 2))
    if not box.close(_PATIENCE_S):
        raise OSError(box.disk_problem)
    return spool / box.name


def _event(name: str, time_ns: int, severity: int, attributes: dict[str, Plain]) -> LogRecord:
    return LogRecord(time_ns, time.time_ns(), severity, name, None, attributes)


def _end_in_words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal_name(os.WTERMSIG(status))}"
    return f"exit status {os.WEXITSTATUS(status)}"
