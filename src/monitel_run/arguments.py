"""The parser of ``monitel``; the arguments of ``monitel run``, and the variables that they set for the command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NoReturn

_DESCRIPTION = (
    "Run a command, for instance torchrun, without changes to its code. Its Python processes that import torch or "
    "monitel are recorded. At the end, telemetry of processes that were killed is delivered, and a summary is printed "
    "to stderr. The exit status is that of the command."
)
_HELP = "run a training command: record its processes, deliver what they leave, and print a summary"
#: The variable of the option ``--name``, which comes before the run ids of launchers.
NAME = "MONITEL_RUN_NAME"

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
    parser.add_argument("--service-name", metavar="NAME", help="service.name; default: OTEL_SERVICE_NAME")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command to run")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command in the arguments after ``run``, and its variables.

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
        return command, _variables(environment, options)
    except ValueError as error:
        parser.error(str(error))


def _variables(environment: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Return variables with those for the options. An endpoint holds for all signals. Raises for one that is wrong."""
    found = dict(environment)
    if options.endpoint is not None:
        from monitel.runs.exporters import load  # late: the command need not wait for it without an endpoint

        exporters, problems = load()
        if not exporters:
            raise ValueError("; ".join([*problems, "--endpoint requires an exporter: pip install monitel-otlp"]))
        for each in exporters:
            each.check_endpoint(options.endpoint)
        for signal in ("METRICS_", "LOGS_", "TRACES_"):
            found.pop(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT", None)
        found["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.endpoint
    if options.service_name is not None:
        found["OTEL_SERVICE_NAME"] = options.service_name
    if options.name is not None:
        found[NAME] = options.name.strip()
        if _ATTRIBUTES in found:  # a run id in there would come first
            others = [each for each in found[_ATTRIBUTES].split(",") if each.partition("=")[0].strip() != _RUN_ID]
            found[_ATTRIBUTES] = ",".join(others)
    return found
