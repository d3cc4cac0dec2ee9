"""The command ``monitel``: run a training job, watch it, examine killed processes, and more.

Other distributions add commands by the entry points ``monitel.commands``: functions that add a command to the parser.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from monitel import __version__
from monitel.blackbox.folder import FolderError
from monitel.text import CommandError, OutputError, warn, write_out
from monitel_run.arguments import Parser

if TYPE_CHECKING:
    import argparse

    Add = Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], object]

_CTRL_C = 128 + signal.SIGINT  # the exit status that a shell reports
#: The module of each command, with a function ``add()``. ``run`` is apart: it starts its command at once.
_MODULES = {
    "top": "monitel.console.top",
    "autopsy": "monitel.console.autopsy",
    "runs": "monitel.console.runs",
    "ledger": "monitel.console.ledger",
    "compare": "monitel.console.compare",
    "report": "monitel.console.report",
}
_OTLP = ("doctor", "cat", "replay")
_DESCRIPTION = "Run a training job, watch it, examine killed processes, deliver what they have left, and more."


def main(arguments: list[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else ""
    program = "python -m monitel" if sys.argv[0].endswith("__main__.py") else "monitel"
    parser: argparse.ArgumentParser = Parser(prog=program, description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"monitel {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in _commands(name):
        add(commands)
    if words := _mistake(name, commands.choices):
        parser.error(words)
    if not arguments:
        parser.error(f"give a command: {', '.join(commands.choices)}")
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices.get(name, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # since the start of the program
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(AttributeError, OSError):  # it is closed, text in memory, or another file than at the start
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        write_out()  # before any work
        status: int = parsed.run(parsed)
        write_out()
    except BrokenPipeError:  # `cat DIR | head`
        _discard_output()
        return 0
    except (CommandError, OutputError, FolderError, OSError) as error:
        warn(_in_words(error))
        if isinstance(error, OutputError):
            _discard_output()
        return 1
    except KeyboardInterrupt:
        warn(parsed.interrupted)
        return _CTRL_C
    return status


def _in_words(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is None and error.errno == errno.ENOENT:  # of getcwd()
        return "the current folder was removed: change to another one"
    return f"{error.filename!r} cannot be used: {error.strerror}" if error.filename else error.strerror


def _mistake(name: str, known: Collection[str]) -> str:
    """Return what is wrong with a command that is not known, if the name shows more than that."""
    if name in known:
        return ""
    if name in _OTLP:
        clone = "pip install -e exporters/otel -e exporters/otlp"
        return f"monitel {name} needs monitel-otlp: run `pip install monitel-otlp` (from a clone: `{clone}`)"
    close = get_close_matches(name, known)
    return f"there is no command {name!r}: did you mean {close[0]!r}?" if close else ""


def _commands(name: str) -> Iterator[Add]:
    """Yield the functions that add the command with a name; of all commands if there is none, for the help."""
    if name in _MODULES:
        yield import_module(_MODULES[name]).add
        return
    from importlib.metadata import entry_points  # late: it takes 6 ms, and none of the commands above uses it

    found = entry_points(group="monitel.commands")
    if name not in found.names:
        yield import_module("monitel_run.arguments").add
        for module in _MODULES.values():
            yield import_module(module).add
    for each in found:
        if name not in found.names or name == each.name:
            try:
                yield each.load()
            except Exception as error:
                warn(f"the command {each.name!r} of {each.value!r:.200} cannot be loaded: {error!r:.300}")


def _discard_output() -> None:
    """Write what is left to nowhere: Python flushes stdout at exit, which would fail."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
