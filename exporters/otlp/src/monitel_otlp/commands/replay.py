"""Delivery of what ended processes have left; the records of killed processes are collected first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitel.blackbox.discovery import Spools, find_boxes, find_spools, holds_boxes, is_box_folder
from monitel.blackbox.folder import FolderError, MissingFolderError, box_root, check_platform
from monitel.blackbox.record import SIGNALS
from monitel.blackbox.recovery import sweep
from monitel.blackbox.settings import existing_runs_dir, given_folder, runs_dir, spool_root
from monitel.text import CommandError, show, warn
from monitel_otlp.config.settings import resolve
from monitel_run.arguments import target

if TYPE_CHECKING:
    import argparse

    from tqdm import tqdm

    from monitel_otlp.export.records import Delivery
    from monitel_otlp.transport.answer import Transport

_REFUSED = (
    "what was refused stays in the spool. If it is old, raise storage.tsdb.out_of_order_time_window of Prometheus, or "
    "limits_config.reject_old_samples_max_age and ingester.max_chunk_age of Loki; then run monitel replay --rejected"
)


@dataclass(frozen=True)
class Places:
    given: Path | None  # a spool, a folder that holds spools, or one that holds black boxes; None for the defaults
    root: Path  # holds spools by default, also those of processes whose own folder does not exist here
    boxes: Path | None = None  # holds black boxes; None for where configure() makes them by default

    def __str__(self) -> str:
        return f"{str(self.root)!r} or {str(runs_dir())!r}" if self.given is None else repr(str(self.given))


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "replay", help="deliver spooled telemetry and black boxes of killed processes, and remove acknowledged requests"
    )
    command.add_argument(
        "dir",
        nargs="?",
        metavar="DIR",
        type=target,
        help="a spool folder, a folder that holds spool folders, or one that holds black boxes; default: "
        "MONITEL_SPOOL_DIR, or the folder that jobs use by default, and monitel-runs",
    )
    command.add_argument("--rejected", action="store_true", help="also send the refused requests again")
    command.add_argument("--endpoint", metavar="URL", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    command.set_defaults(run=_replay, interrupted="interrupted; run this command again to continue")


def _replay(arguments: argparse.Namespace) -> int:
    from monitel_otlp.transport import make_transports  # late: the help needs no OpenTelemetry

    check_platform()
    try:
        settings = replace(resolve(arguments.endpoint), off=frozenset())
        transports = make_transports(settings)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not settings.endpoints:
        raise CommandError("no endpoint: give --endpoint http://HOST:4318 or set OTEL_EXPORTER_OTLP_ENDPOINT")
    places = Places(Path(arguments.dir) if arguments.dir else None, spool_root(), given_folder("black_box_dir"))
    try:
        return _deliver_all(places, transports, rejected=arguments.rejected)
    finally:
        for transport in transports.values():
            transport.close()


def _deliver_all(places: Places, transports: Mapping[str, Transport], *, rejected: bool) -> int:
    """Collect the records of killed processes, deliver every record that is found, and print the outcome.

    A record that cannot be used is reported; the others are delivered. The exit status is 0 if everything was,
    and if nothing was left.
    """
    from tqdm import tqdm  # late, as above

    from monitel_otlp.export.records import Delivery, oldest_first, take  # late, as above

    found = _collect_and_find(places)
    problems = list(found.problems)
    records = oldest_first({*found.folders, *(found.refused if rejected else ())})
    if not (records or problems):
        warn(nothing_left(places, found))
        return 1 if found.refused else 0
    total, used = Delivery(transports), 0
    for problem in problems:
        warn(problem)
    for path in records:
        unreadable = total.unreadable
        try:
            with closing(take(path, box_root(places.boxes))) as dead:
                if rejected:
                    total.deliver_rejected(dead)
                with tqdm(unit="items", unit_scale=True, desc=path.name, disable=None) as progress:
                    total.deliver(dead, partial(_show, progress))
        except MissingFolderError:
            continue  # another process has delivered it meanwhile
        except Exception as error:
            words = str(error) if isinstance(error, (FolderError, OSError)) else repr(error)
            problems.append(words if str(path) in words else f"{str(path)!r} cannot be read: {words}")
            warn(problems[-1])
            continue
        used += 1
        if unreadable := total.unreadable - unreadable:
            warn(f"{str(path)!r} is damaged: {unreadable:,} of its items cannot be read")
    for reason, left in total.troubles.items():
        more = f" and {_count(len(left) - 1, 'more folder')}" * (len(left) > 1)
        warn(f"{reason}; the rest is still in {left[0]}{more}, run this command again")
    show(_summary(total, used, len(problems)))
    _warn_about(total, places)
    return 0 if total.complete and not problems else 1


def _warn_about(total: Delivery, places: Places) -> None:
    if total.set_aside_requests:
        warn(_REFUSED)
    if total.offline:
        signals = [signal for signal in SIGNALS if signal in total.offline]
        variables = " and ".join(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in signals)
        problem = f"the {' and '.join(signals)} in {places} remain there, because no endpoint is set for them"
        warn(f"{problem}: set {variables}, or give --endpoint")


def _collect_and_find(places: Places) -> Spools:
    """Collect the records of killed processes, print their number, and return what can be delivered."""
    from monitel_otlp.export.collector import collect  # late, as above

    given, boxes = places.given, places.boxes
    boxes_given = given is not None and (is_box_folder(given) or holds_boxes(given))
    if given is not None and boxes_given:
        boxes = given.parent if is_box_folder(given) else given
    collected = collect(box_root(boxes), places.root.absolute())
    if collected.boxes:
        number = _count(collected.boxes, "black box", "black boxes")
        show(f"collected {_count(collected.items, 'item')} from {number}", flush=True)
    for death in collected.deaths:
        show(str(death), flush=True)
    found = Spools(problems=collected.problems)
    of_runs = existing_runs_dir() if given is None else []
    for root in [] if boxes_given else [given or places.root.absolute(), *of_runs]:
        if given is not None or root.is_dir():
            sweep(root)
            below = find_spools(root)
            found.folders += below.folders
            found.refused += below.refused
            found.problems += [] if root in of_runs else below.problems  # some are of other users
    if given is None or boxes_given:
        spooled = {path.name for path in found.folders}
        in_boxes = find_boxes(boxes).ended
        others = {path for path in (*collected.records, *in_boxes) if path.name not in spooled}
        found.folders += [path for path in others if boxes in {places.boxes, given} or path.name == given.name]  # type: ignore[union-attr]
        return found
    for path in collected.records:
        if not path.is_relative_to(given.absolute()):
            show(f"what a killed process has left is now in {str(path)!r}, which is not in {places}", flush=True)
    return found


def _show(progress: tqdm[Any], delivered: int, total: int) -> None:
    progress.total = total
    progress.update(delivered - progress.n)


def nothing_left(places: object, found: Spools) -> str:
    left = "replay --rejected sends the refused requests again" if found.refused else "nothing is left to deliver"
    return f"there is no spooled telemetry in {places}: {left}"


def _summary(total: Delivery, used: int, unusable: int) -> str:
    lost = ", ".join(f"{reason} {items:,}" for reason, items in sorted(total.lost.items()))
    parts = {
        "refused, and set aside in the spool": total.set_aside,
        f"lost ({lost})": total.lost.total(),
        "unreadable items": total.unreadable,
        "folders that cannot be used": unusable,
    }
    if total.set_aside_requests and not total.set_aside:
        parts["requests without items, refused, and set aside in the spool"] = total.set_aside_requests
    more = "".join(f"; {name}: {number:,}" for name, number in parts.items() if number)
    return f"delivered {_count(total.delivered, 'item')} from {_count(used, 'spool')}{more}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
