"""The commands that need OpenTelemetry, as ``monitel`` finds them: the entry points ``monitel.commands``."""

from __future__ import annotations

import argparse
import shlex
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import check_platform
from monitel.blackbox.folder import FolderError
from monitel.blackbox.settings import FOLDERS, default_roots
from monitel.console.arguments import at_least, folder
from monitel.console.commands.output import show, warn
from monitel.variables import read_variables
from monitel_otlp.choices import DISTRIBUTIONS
from monitel_otlp.commands.cat import cat
from monitel_otlp.commands.doctor import examine
from monitel_otlp.commands.replay import Places, replay_all
from monitel_otlp.commands.simulate import simulate
from monitel_otlp.commands.simulation import NAMED_STATS, Lateness, Report, Simulation
from monitel_otlp.config.environment import GRPC, HTTP
from monitel_otlp.config.settings import resolve
from monitel_otlp.transport.factory import make_transports

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_CTRL_C = 128 + signal.SIGINT  # the exit status that a shell reports


def add_replay(commands: Commands) -> None:
    """Add the command ``replay`` to a parser."""
    command = commands.add_parser(
        "replay", help="deliver spooled telemetry and black boxes of killed processes, and remove acknowledged requests"
    )
    _add_source(
        command,
        "a spool folder, a folder that holds spool folders, or one that holds black boxes; default: MONITEL_SPOOL_DIR, "
        "or the folders that jobs use by default",
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


def add_simulate(commands: Commands) -> None:
    """Add the command ``simulate`` to a parser."""
    command = commands.add_parser(
        "simulate",
        help="send the telemetry of a job with one process per rank; one rank is late, and one has a loss of NaN",
        description="Send the telemetry of a training job: real Stats, events and wait counters, with one process and "
        "one pipeline per rank. It takes as long as the windows last. One rank is late in one stage of each step, so "
        "that the others wait for it, and one rank has a loss of NaN: try to find them in your backend. Without an "
        "endpoint everything goes to the spool. The exit status is 1 if an item was not delivered.",
    )
    command.add_argument("--ranks", type=at_least(1), default=64, help="number of processes (%(default)s)")
    command.add_argument("--stats", type=at_least(NAMED_STATS), default=50, help="Stats of each rank (%(default)s)")
    command.add_argument("--windows", type=at_least(1), default=10, help="windows of each Stat (%(default)s)")
    command.add_argument("--window", type=at_least(0.1), default=1.0, help="length of a window, seconds (%(default)s)")
    command.add_argument("--seed", type=at_least(0), default=0, help="seed of the samples (%(default)s)")
    command.add_argument(
        "--late",
        type=_lateness,
        action="append",
        metavar="STAGE:RANK:DELAY",
        help="a delay such as data:2:30ms, or data:2:30ms/10 in one step of ten; repeatable (default: by the seed)",
    )
    command.add_argument(
        "--distributions", choices=DISTRIBUTIONS, help="also export a HISTOGRAM of step.time, in this form"
    )
    _add_destination(command)
    command.set_defaults(
        run=_simulate, interrupted="interrupted; ranks that were still running have lost the telemetry in their memory"
    )


def _add_source(command: argparse.ArgumentParser, described: str, *, optional: bool = False) -> None:
    command.add_argument("dir", nargs="?" if optional else None, metavar="DIR", type=folder, help=described)
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
    settings = replace(resolve(arguments.endpoint, headers, protocol=arguments.protocol), off=frozenset())
    if not settings.endpoints:
        raise FolderError("no endpoint: give --endpoint http://HOST:4318 or set OTEL_EXPORTER_OTLP_ENDPOINT")
    folders = read_variables(FOLDERS, {"spool_dir": None, "black_box_dir": None})
    roots = [Path(folders["spool_dir"])] if folders.get("spool_dir") else default_roots()
    places = Places(arguments.dir, roots, folders.get("black_box_dir"))
    routes = make_transports(settings)
    try:
        return replay_all(places, routes, rejected=arguments.rejected, foreign=arguments.foreign)
    finally:
        for transport in routes.values():
            transport.close()


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise ValueError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    return name, value


def _cat(arguments: argparse.Namespace) -> int:
    check_platform()
    return cat(arguments.dir, foreign=arguments.foreign)


def _lateness(text: str) -> Lateness:
    try:
        return Lateness.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _simulate(arguments: argparse.Namespace) -> int:
    headers = dict(map(_header, arguments.header))
    folder = read_variables(FOLDERS, {"spool_dir": None})
    settings = resolve(arguments.endpoint, headers, protocol=arguments.protocol, **folder)
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
        arguments.late and tuple(arguments.late),
    )
    destinations = {each.public_url.removesuffix(f"/v1/{signal}") for signal, each in settings.endpoints.items()}
    if settings.offline:
        destinations.add(f"{settings.spool_root.absolute()} ({', '.join(settings.offline)})")
    each = f"{simulation.stats} Stats each, {_count(simulation.windows, 'window')} of {simulation.window:g} s"
    show(f"{_count(simulation.ranks, 'rank')}, {each}\nto          {', '.join(sorted(destinations))}", flush=True)
    began = time.monotonic()
    reports, interrupted = simulate(simulation)
    delivered = _print_outcome(simulation, reports, time.monotonic() - began)
    if interrupted:
        return _CTRL_C
    return 0 if delivered else 1


def _print_outcome(simulation: Simulation, reports: list[Report], seconds: float) -> bool:
    """Print the totals, and the ranks to find; True if every item was delivered, or is on disk as configured."""
    windows, numbers, events = (
        sum(getattr(each, kind) for each in reports) for kind in ("windows", "numbers", "events")
    )
    show(f"recorded    {windows:,} windows, {numbers:,} numbers and {events:,} events in {seconds:.1f} s")
    exported, spooled = sum(each.exported for each in reports), sum(each.spooled for each in reports)
    lost = sum((Counter(each.dropped) for each in reports), Counter[str]())
    reasons = f" ({', '.join(f'{reason} {items:,}' for reason, items in lost.items())})" if lost else ""
    show(f"outcome     {exported:,} acknowledged, {spooled:,} on disk, {lost.total():,} dropped{reasons}")
    for delay in simulation.delays:
        if delay.seconds:
            show(f"late        {delay}")
    show(f"NaN         rank {simulation.nan_rank}: loss, in window {simulation.nan_window + 1}")
    if dead := simulation.ranks - len(reports):
        warn(f"{_count(dead, 'rank')} ended without a report")
    if failed := [each for each in reports if not each.complete or each.dropped]:
        warn(f"{_count(len(failed), 'rank')} could not deliver everything")
        warn(f"output of rank {failed[0].rank}:\n{failed[0].stderr.rstrip()}", "")
    if spooled:
        show(f"replay      monitel replay {shlex.quote(str(reports[0].spool_root))}")
    return not (dead or failed)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
