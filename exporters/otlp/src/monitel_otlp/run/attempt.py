"""The events of one attempt to run a command: ``attempt.started`` and ``attempt.ended``."""

from __future__ import annotations

import os
import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from monitel.attributes import escape_surrogates
from monitel_otel.scope import SCOPE
from monitel_otlp.collection.death import signal_name
from monitel_otlp.config.launchers import LAUNCHERS
from monitel_otlp.configuration import describe_process
from monitel_otlp.logs.mapping import EventMapping
from monitel_otlp.messages.resource import encode_resource
from monitel_otlp.raw.forms import VERSION
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from monitel_otlp.logs.mapping import PlainEvent
    from monitel_otlp.messages.attributes import Plain
    from monitel_otlp.run.parent import Ended
    from monitel_otlp.run.process_watch import ProcessEnd

STARTED, ENDED = "attempt.started", "attempt.ended"

_INFO, _ERROR = 9, 17
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


def started(command: Sequence[str], began_ns: int, repository: Mapping[str, Plain]) -> PlainEvent:
    """Return the event of the start."""
    return _event(STARTED, began_ns, _INFO, {"run.command": program_and_script(command), **repository})


def ended(command: Sequence[str], end: Ended, ends: Sequence[ProcessEnd]) -> PlainEvent:
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


def write_events(events: Sequence[PlainEvent], folder: Path) -> None:
    """Write events to a new spool, with the resource of this process.

    Raises:
        OSError: The spool could not be written.
        SpoolError: The folder cannot be used.
    """
    header: tuple[Any, ...] = (
        *("events", VERSION, encode_resource(describe_process())),
        *(tuple(SCOPE), time.time_ns(), None),
    )
    spool = Spool(folder)
    try:
        spool.append_raw("logs", header, encode_blocks([*map(EventMapping().limited, events)]))
    finally:
        spool.close()


def _event(name: str, time_ns: int, severity: int, attributes: dict[str, Plain]) -> PlainEvent:
    return time_ns, time.time_ns(), severity, name, None, attributes, 0, b"", b"", 0


def _end_in_words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal_name(os.WTERMSIG(status))}"
    return f"exit status {os.WEXITSTATUS(status)}"
