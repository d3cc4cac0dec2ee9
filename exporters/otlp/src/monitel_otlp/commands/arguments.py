"""Arguments that several commands have: a folder with records, and the destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel.text import CommandError
from monitel_otlp.config.settings import GRPC, HTTP
from monitel_run.arguments import target

if TYPE_CHECKING:
    import argparse


def add_source(command: argparse.ArgumentParser, described: str, *, optional: bool = False) -> None:
    command.add_argument("dir", nargs="?" if optional else None, metavar="DIR", type=target, help=described)
    command.add_argument(
        "--foreign",
        action="store_true",
        help="also use folders that belong to other users or that others can write to; only if you trust their content",
    )


def add_destination(command: argparse.ArgumentParser) -> None:
    command.add_argument("--endpoint", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="added to each request; default: OTEL_EXPORTER_OTLP_HEADERS",
    )
    command.add_argument("--protocol", choices=(HTTP, GRPC), help="default: OTEL_EXPORTER_OTLP_PROTOCOL")


def headers_of(arguments: argparse.Namespace) -> dict[str, str]:
    headers: dict[str, str] = {}
    for given in arguments.header:
        name, equals, headers[name] = given.partition("=")
        if not (name and equals):
            raise CommandError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    return headers
