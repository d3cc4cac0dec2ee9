"""The arguments of ``monitel run``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitel.console.arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = (
    "Run a command, for instance torchrun, without changes to its code. Its Python processes that import torch or "
    "monitel are recorded. At the end, telemetry of processes that were killed is delivered, and a summary is printed "
    "to stderr. The exit status is that of the command."
)
_HELP = "run a training command: record its processes, deliver what they leave, and print a summary"

_WITH_VALUE = ("--endpoint", "--header", "--protocol", "--service-name")


@dataclass(frozen=True)
class RunArguments:
    """The parsed arguments.

    Attributes:
        command: The program and its arguments.
        endpoint: Base URL; None for that of the variables.
        headers: Names and values of headers.
        protocol: The protocol; None for that of the variables.
        service_name: ``service.name``; None for that of the variables.
    """

    command: tuple[str, ...]
    endpoint: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    protocol: str | None = None
    service_name: str | None = None


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of all commands, for its help."""
    _add_options(commands.add_parser("run", help=_HELP, description=_DESCRIPTION))


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options and the command to a parser."""
    parser.add_argument("--endpoint", metavar="URL", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="added to each request; visible in the list of processes, unlike OTEL_EXPORTER_OTLP_HEADERS",
    )
    parser.add_argument(
        "--protocol", choices=("http/protobuf", "grpc"), help="default: OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf"
    )
    parser.add_argument("--service-name", metavar="NAME", help="service.name; default: OTEL_SERVICE_NAME")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command to run")


def parse(arguments: Sequence[str]) -> RunArguments:
    """Parse the arguments after ``run``. Options of the command are left alone, with and without ``--`` before it.

    Raises:
        SystemExit: An argument is wrong; the message is printed to stderr. Or help was requested, and printed.
    """
    parser = Parser(prog="monitel run", description=_DESCRIPTION, allow_abbrev=False)
    _add_options(parser)
    begin = _begin_of_command(arguments)
    options = parser.parse_args(arguments[:begin])
    if options.command:  # argparse takes an unknown option with a space in its value for a word
        parser.error(f"unrecognized arguments: {' '.join(options.command)}")
    command = tuple(arguments[begin:])
    if command[:1] == ("--",):
        command = command[1:]
    if not command:
        parser.error("give a command, for instance: monitel run -- torchrun train.py")
    if options.endpoint is not None and (problem := _problem(options.endpoint)) is not None:
        parser.error(f"--endpoint: {problem}")
    return RunArguments(
        command,
        options.endpoint,
        tuple(_header(parser, given) for given in options.header),
        options.protocol,
        options.service_name,
    )


def _begin_of_command(arguments: Sequence[str]) -> int:
    """Return the index of ``--``, or of the first argument that is neither an option nor its value."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] not in {"--", "-"}:
        index += 2 if arguments[index] in _WITH_VALUE else 1
    return min(index, len(arguments))


def _header(parser: argparse.ArgumentParser, given: str) -> tuple[str, str]:
    from monitel_otlp.config.environment import is_header  # late, as below

    name, _, value = (part.strip() for part in given.partition("="))
    if not (name and value and is_header(name, value)):
        parser.error("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    return name, value


def _problem(endpoint: str) -> str | None:
    from monitel_otlp.config.settings import resolve  # late: the command need not wait for it without an endpoint

    try:
        resolve(endpoint)
    except ValueError as error:
        return str(error)
    return None
