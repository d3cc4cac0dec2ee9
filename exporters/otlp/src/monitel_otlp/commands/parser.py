"""The commands that need OpenTelemetry, as ``monitel`` finds them: the entry points ``monitel.commands``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import check_platform
from monitel.blackbox.settings import FOLDERS, default_root
from monitel.console.commands.output import CommandError
from monitel.variables import read_variables
from monitel_otlp.commands.cat import cat
from monitel_otlp.commands.doctor import examine
from monitel_otlp.commands.replay import Places, replay_all
from monitel_otlp.config.environment import GRPC, HTTP
from monitel_otlp.config.settings import resolve
from monitel_otlp.transport import make_transports
from monitel_run.arguments import target

if TYPE_CHECKING:
    import argparse

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_replay(commands: Commands) -> None:
    """Add the command ``replay`` to a parser."""
    command = commands.add_parser(
        "replay", help="deliver spooled telemetry and black boxes of killed processes, and remove acknowledged requests"
    )
    _add_source(
        command,
        "a spool folder, a folder that holds spool folders, or one that holds black boxes; default: MONITEL_SPOOL_DIR, "
        "or the folder that jobs use by default",
        optional=True,
    )
    command.add_argument("--rejected", action="store_true", help="also send the refused requests in rejected.log again")
    _add_destination(command)
    command.set_defaults(run=_replay, interrupted="interrupted; run this command again to continue")


def add_cat(commands: Commands) -> None:
    """Add the command ``cat`` to a parser."""
    command = commands.add_parser("cat", help="print spooled telemetry as OTLP JSON lines")
    _add_source(command, "a spool folder, or a folder that holds spool folders")
    command.set_defaults(run=_cat, interrupted="interrupted")


def add_doctor(commands: Commands) -> None:
    """Add the command ``doctor`` to a parser."""
    command = commands.add_parser("doctor", help="show the configuration, and send an empty request to each endpoint")
    _add_destination(command)
    command.set_defaults(run=_doctor, interrupted="interrupted before every endpoint had answered")


def _add_source(command: argparse.ArgumentParser, described: str, *, optional: bool = False) -> None:
    command.add_argument("dir", nargs="?" if optional else None, metavar="DIR", type=target, help=described)
    command.add_argument(
        "--foreign",
        action="store_true",
        help="also use folders that belong to other users or that others can write to; only if you trust their content",
    )


def _add_destination(command: argparse.ArgumentParser) -> None:
    command.add_argument("--endpoint", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="added to each request; default: OTEL_EXPORTER_OTLP_HEADERS",
    )
    command.add_argument("--protocol", choices=(HTTP, GRPC), help="default: OTEL_EXPORTER_OTLP_PROTOCOL")


def _doctor(arguments: argparse.Namespace) -> int:
    return examine(arguments.endpoint, dict(map(_header, arguments.header)), arguments.protocol)


def _replay(arguments: argparse.Namespace) -> int:
    check_platform()
    headers = dict(map(_header, arguments.header))
    try:
        settings = replace(resolve(arguments.endpoint, headers, protocol=arguments.protocol), off=frozenset())
        routes = make_transports(settings)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not settings.endpoints:
        raise CommandError("no endpoint: give --endpoint http://HOST:4318 or set OTEL_EXPORTER_OTLP_ENDPOINT")
    folders = read_variables(FOLDERS, {"spool_dir": None, "black_box_dir": None})
    root = folders.get("spool_dir") or default_root()
    places = Places(Path(arguments.dir) if arguments.dir else None, root, folders.get("black_box_dir"))
    try:
        return replay_all(places, routes, rejected=arguments.rejected, foreign=arguments.foreign)
    finally:
        for transport in routes.values():
            transport.close()


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise CommandError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    return name, value


def _cat(arguments: argparse.Namespace) -> int:
    check_platform()
    return cat(Path(arguments.dir), foreign=arguments.foreign)
