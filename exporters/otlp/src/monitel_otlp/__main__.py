"""``python -m monitel_otlp``: look at spooled telemetry and deliver it, see why none arrives, and simulate a job."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from monitel_otlp.commands.doctor import examine
from monitel_otlp.commands.replay import describe_age, replay, spool_folders, take_back
from monitel_otlp.commands.simulate import NAMED_STATS, SLOWDOWN, Report, Simulation, simulate
from monitel_otlp.config.environment import GRPC, HTTP
from monitel_otlp.config.settings import DISTRIBUTIONS, resolve
from monitel_otlp.sdk.encoder import public_url
from monitel_otlp.spool.json_lines import json_line
from monitel_otlp.spool.spool import Spool, SpoolError
from monitel_otlp.transport.factory import make_encoders, make_senders

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)

_CTRL_C = 128 + signal.SIGINT  # what a shell reports


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m monitel_otlp", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("replay", help="deliver spooled telemetry, and remove what was acknowledged")
    command.add_argument("dir", type=Path, help="a spool folder, or a folder that holds some")
    command.add_argument("--rejected", action="store_true", help="send what was refused, and is in rejected/, again")
    _where_to(command)
    command.set_defaults(run=_replay, interrupted="interrupted; run this again to go on")
    command = commands.add_parser("cat", help="print spooled telemetry as OTLP JSON lines")
    command.add_argument("dir", type=Path, help="a spool folder, or a folder that holds some")
    command.set_defaults(run=_cat, interrupted="interrupted")
    command = commands.add_parser("doctor", help="show the configuration, and try each endpoint with an empty request")
    _where_to(command)
    command.set_defaults(run=_doctor, interrupted="interrupted before every endpoint had its time to answer")
    command = commands.add_parser(
        "simulate",
        help="send what the ranks of a job would, each from a process of its own, one of them slow and one with a NaN",
        description="Send what the ranks of a training job would send: real Stats, events and wait counters, through a "
        "pipeline in a process for each rank. It takes as long as the windows do. One rank is slow and one has a loss "
        "of NaN: see whether you find them. Without an endpoint everything goes to the spool. The exit status is 1 "
        "when something was not delivered.",
    )
    command.add_argument("--ranks", type=_at_least(1), default=64, help="processes (%(default)s)")
    command.add_argument("--stats", type=_at_least(NAMED_STATS), default=50, help="Stats of each rank (%(default)s)")
    command.add_argument("--windows", type=_at_least(1), default=10, help="windows of each Stat (%(default)s)")
    command.add_argument("--window", type=_at_least(0.1), default=1.0, help="seconds that each lasts (%(default)s)")
    command.add_argument("--seed", type=_at_least(0), default=0, help="same seed, same samples (%(default)s)")
    command.add_argument("--distributions", choices=DISTRIBUTIONS, help="step.time has a HISTOGRAM too, and is sent so")
    _where_to(command)
    command.set_defaults(
        run=_simulate, interrupted="interrupted; ranks still at work are gone, with what was in their memory"
    )
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # `cat DIR | head`: what is still to be written at exit has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SpoolError, ValueError, OSError) as error:
        print(f"monitel_otlp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"monitel_otlp: {parsed.interrupted}", file=sys.stderr)
        return _CTRL_C
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
    folders = spool_folders(arguments.dir, rejected=arguments.rejected)
    headers = dict(map(_header, arguments.header))
    settings = resolve(arguments.endpoint, headers, protocol=arguments.protocol)
    if not settings.endpoints:
        raise SpoolError("no endpoint: give --endpoint http://HOST:4318 or set OTEL_EXPORTER_OTLP_ENDPOINT")
    routes = make_senders(settings, make_encoders(settings))
    if arguments.rejected:
        take_back(folders)
    for line in describe_age(folders):
        print(line, flush=True)  # before the progress bar
    delivered = too_old = spools = failures = 0
    for folder in folders:
        outcome = replay(folder, routes)
        delivered += outcome.delivered
        too_old += outcome.too_old
        if outcome.trouble is not None:
            failures += 1
            print(f"monitel_otlp: {outcome.trouble}", file=sys.stderr)
        if outcome.trouble is None or outcome.delivered or outcome.too_old:
            spools += 1
    if spools:
        aside = f"; refused for their age, and set aside in rejected/: {too_old}" if too_old else ""
        print(f"delivered {_count(delivered, 'item')} from {_count(spools, 'spool')}{aside}")
    return 1 if failures else 0


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise ValueError("a --header must be NAME=VALUE")  # not echoed: it may hold a token
    return name, value


def _cat(arguments: argparse.Namespace) -> int:
    for folder in spool_folders(arguments.dir):
        for request in Spool(folder).peek():
            print(json_line(request))
    return 0


def _at_least(minimum: Number) -> Callable[[str], Number]:
    """Return an argparse type: a finite number of the minimum's kind, not below it."""

    def convert(text: str) -> Number:
        value = type(minimum)(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        return value

    convert.__name__ = type(minimum).__name__  # argparse names it: invalid int value: 'x'
    return convert


def _simulate(arguments: argparse.Namespace) -> int:
    headers = dict(map(_header, arguments.header))
    settings = resolve(arguments.endpoint, headers, protocol=arguments.protocol)
    simulation = Simulation(
        arguments.ranks,
        arguments.stats,
        arguments.windows,
        round(arguments.window, 3),
        arguments.seed,
        arguments.endpoint,
        headers,
        arguments.protocol,
        arguments.distributions,
    )
    places = {public_url(each.url).removesuffix(f"/v1/{signal}") for signal, each in settings.endpoints.items()}
    if settings.offline:
        places.add(f"{settings.spool_root.absolute()} ({', '.join(settings.offline)})")
    each = f"{simulation.stats} Stats each, {_count(simulation.windows, 'window')} of {simulation.window:g} s"
    print(f"{_count(simulation.ranks, 'rank')}, {each}\nto          {', '.join(sorted(places))}", flush=True)
    began = time.monotonic()
    reports, interrupted = simulate(simulation)
    delivered = _print_outcome(simulation, reports, time.monotonic() - began)
    if interrupted:
        return _CTRL_C
    return 0 if delivered else 1


def _print_outcome(simulation: Simulation, reports: list[Report], seconds: float) -> bool:
    """Print what there is to find and what became of it; True if all of it was delivered, or is on disk as wanted."""
    windows, events = sum(each.windows for each in reports), sum(each.events for each in reports)
    print(f"recorded    {windows:,} windows and {events:,} events in {seconds:.1f} s")
    exported, spooled = sum(each.exported for each in reports), sum(each.spooled for each in reports)
    lost = sum((Counter(each.dropped) for each in reports), Counter[str]())
    why = f" ({', '.join(f'{reason} {items:,}' for reason, items in lost.items())})" if lost else ""
    print(f"of these    {exported:,} acknowledged, {spooled:,} on disk, {lost.total():,} dropped{why}")
    print(f"slow        rank {simulation.slow_rank}: step.time is {SLOWDOWN:g} times that of the others")
    print(f"NaN         rank {simulation.sick_rank}: loss, in window {simulation.nan_window + 1}")
    if dead := simulation.ranks - len(reports):
        print(f"monitel_otlp: {_count(dead, 'rank')} died without a word", file=sys.stderr)
    if failed := [each for each in reports if not each.complete or each.dropped]:
        print(f"monitel_otlp: {_count(len(failed), 'rank')} could not deliver everything", file=sys.stderr)
        print(f"rank {failed[0].rank} says:\n{failed[0].said.rstrip()}", file=sys.stderr)
    if spooled:
        print(f"send it by  python -m monitel_otlp replay {reports[0].spool_root}")
    return not (dead or failed)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main())
