"""The parser of ``monitel``; the arguments of ``monitel run``, and the variables that they set for the command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DESCRIPTION = (
    "Run a command, for instance torchrun, without changes to its code. Its Python processes that import torch or "
    "monitel are recorded. At the end, telemetry of processes that were killed is delivered, and a summary is printed "
    "to stderr. The exit status is that of the command."
)
_HELP = "run a training command: record its processes, deliver what they leave, and print a summary"
#: The variable of the option ``--name``, which comes before the run ids of launchers.
NAME = "MONITEL_RUN_NAME"

_OTLP = "OTEL_EXPORTER_OTLP_"
_SIGNALS = ("METRICS", "LOGS", "TRACES")
_ATTRIBUTES, _RUN_ID = "OTEL_RESOURCE_ATTRIBUTES", "training.run.id"


class Parser(argparse.ArgumentParser):
    """A parser whose messages never show the value of an unknown option, which may hold a token."""

    def error(self, message: str) -> NoReturn:
        """Print a message to stderr, and exit with status 2."""
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            given = message.removeprefix(prefix).split()
            options = [each.partition("=")[0] for each in given if each.startswith("-")]
            message = prefix + " ".join(options or given)
        super().error(message)


def target(text: str) -> str:
    """Return the path of a folder, or a process id. An empty text, such as that of an unset variable, is an error."""
    if not text:
        raise argparse.ArgumentTypeError("got an empty text")
    return text


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser, for its help."""
    _add_options(commands.add_parser("run", help=_HELP, description=_DESCRIPTION))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="the name of the run; a command with the same name continues it")
    parser.add_argument("--endpoint", metavar="URL", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    visible = "added to each request; visible in the list of processes, unlike OTEL_EXPORTER_OTLP_HEADERS"
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help=visible)
    protocol = "default: OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf"
    parser.add_argument("--protocol", choices=("http/protobuf", "grpc"), help=protocol)
    parser.add_argument("--service-name", metavar="NAME", help="service.name; default: OTEL_SERVICE_NAME")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command to run")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str], bool]:
    """Return the command in the arguments after ``run``, its variables, and True if they give an endpoint.

    Options of the command are left alone, with and without ``--`` before it. If an argument is wrong, or help is
    requested, SystemExit is raised.
    """
    parser = Parser(prog="monitel run", description=_DESCRIPTION, allow_abbrev=False)
    _add_options(parser)
    options = parser.parse_args(arguments)
    command = tuple(options.command)
    if command[:1] == ("--",):
        command = command[1:]
    elif command and command[0].startswith("-"):  # argparse takes an unknown option with a space for a word
        parser.error(f"unrecognized arguments: {command[0]}")
    if not command:
        parser.error("give a command, for instance: monitel run -- torchrun train.py")
    if options.name is not None and not options.name.strip():
        parser.error("--name: expected a name, got an empty text")
    try:
        return command, _variables(environment, options), options.endpoint is not None
    except ValueError as error:
        parser.error(str(error))


def _headers(options: argparse.Namespace) -> dict[str, str]:
    """Return the headers, after a check of endpoint and headers by the exporters."""
    headers = {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in options.header)}
    if not all([*headers, *headers.values()]):
        raise ValueError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    if options.endpoint is not None or headers:
        from monitel.runs.exporters import load  # late: the command need not wait for it without these

        exporters, problems = load()
        if not exporters:
            problems.append("--endpoint and --header require an exporter: pip install monitel-otlp")
            raise ValueError("; ".join(problems))
        for each in exporters:
            each.check_options(options.endpoint, headers)
    return headers


def _variables(environment: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Return variables with those for the options. Endpoint and protocol hold for all signals; headers are added."""
    found = dict(environment)
    for name, value in (("ENDPOINT", options.endpoint), ("PROTOCOL", options.protocol)):
        if value is not None:
            for signal in _SIGNALS:
                found.pop(f"{_OTLP}{signal}_{name}", None)
            found[f"{_OTLP}{name}"] = value
    if headers := _headers(options):
        from urllib.parse import quote  # late: it is rarely needed

        more = ",".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in headers.items())
        for name in [f"{_OTLP}HEADERS", *(f"{_OTLP}{signal}_HEADERS" for signal in _SIGNALS)]:
            if name in found or name == f"{_OTLP}HEADERS":
                found[name] = f"{found[name]},{more}" if found.get(name, "").strip() else more
    if options.service_name is not None:
        found["OTEL_SERVICE_NAME"] = options.service_name
    if options.name is not None:
        found[NAME] = options.name.strip()
        if _ATTRIBUTES in found:  # a run id in there would come first
            others = [each for each in found[_ATTRIBUTES].split(",") if each.partition("=")[0].strip() != _RUN_ID]
            found[_ATTRIBUTES] = ",".join(others)
    return found
