"""``python -m monitel_otlp``: look at spooled telemetry and deliver it, and see why none arrives."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from monitel_otlp.doctor import examine
from monitel_otlp.jsonlines import json_line
from monitel_otlp.replay import describe_age, replay, spool_folders
from monitel_otlp.senders import make_encoders, make_senders
from monitel_otlp.settings import GRPC, HTTP, resolve
from monitel_otlp.spool import Spool, SpoolError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m monitel_otlp", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("replay", help="deliver spooled telemetry, and remove what was acknowledged")
    command.add_argument("dir", type=Path, help="a spool folder, or a folder that holds some")
    _where_to(command)
    command.set_defaults(run=_replay)
    command = commands.add_parser("cat", help="print spooled telemetry as OTLP JSON lines")
    command.add_argument("dir", type=Path, help="a spool folder, or a folder that holds some")
    command.set_defaults(run=_cat)
    command = commands.add_parser("doctor", help="show the configuration, and try each endpoint with an empty request")
    _where_to(command)
    command.set_defaults(run=_doctor)
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except (SpoolError, ValueError) as error:
        print(f"monitel_otlp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("monitel_otlp: interrupted; run this again to go on", file=sys.stderr)
        return 128 + signal.SIGINT
    return status


def _where_to(command: argparse.ArgumentParser) -> None:
    command.add_argument("--endpoint", help="base URL; else OTEL_EXPORTER_OTLP_ENDPOINT")
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="sent along; else OTEL_EXPORTER_OTLP_HEADERS",
    )
    command.add_argument("--protocol", choices=(HTTP, GRPC), help="else OTEL_EXPORTER_OTLP_PROTOCOL")


def _doctor(arguments: argparse.Namespace) -> int:
    return examine(arguments.endpoint, dict(map(_header, arguments.header)), arguments.protocol)


def _replay(arguments: argparse.Namespace) -> int:
    folders = spool_folders(arguments.dir)
    headers = dict(map(_header, arguments.header))
    settings = resolve(arguments.endpoint, headers, protocol=arguments.protocol)
    if not settings.endpoints:
        raise SpoolError("no endpoint: give --endpoint http://HOST:4318 or set OTEL_EXPORTER_OTLP_ENDPOINT")
    routes = make_senders(settings, make_encoders(settings))
    for line in describe_age(folders):
        print(line, flush=True)  # before the progress bar
    delivered = too_old = failures = 0
    for folder in folders:
        try:
            outcome = replay(folder, routes)
            delivered += outcome.delivered
            too_old += outcome.too_old
        except SpoolError as error:
            failures += 1
            print(f"monitel_otlp: {error}", file=sys.stderr)
    done = len(folders) - failures
    aside = f"; refused for their age, and set aside in rejected/: {too_old}" if too_old else ""
    print(f"delivered {delivered} items from {done} spool{'' if done == 1 else 's'}{aside}")
    return 1 if failures else 0


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise ValueError("a --header must be NAME=VALUE")  # not echoed: it may hold a token
    return name, value


def _cat(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `cat DIR | head` ends quietly
    for folder in spool_folders(arguments.dir):
        for request in Spool(folder).peek():
            print(json_line(request))
    return 0


if __name__ == "__main__":
    sys.exit(main())
