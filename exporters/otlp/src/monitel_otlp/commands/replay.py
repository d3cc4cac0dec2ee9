"""Delivery of the spools of ended processes; the black boxes of killed processes become spools first."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from monitel_otlp.boxes.discovery import holds_boxes
from monitel_otlp.collection.collector import collect_boxes
from monitel_otlp.commands.output import show, warn
from monitel_otlp.delivery.replay import ReplayOutcome, replay
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.discovery import Found, find_spools
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from monitel_otlp.transport.answer import Transport

_HOUR = 3600.0
_PROMETHEUS, _LOKI = 1 * _HOUR, 7 * 24 * _HOUR  # the default maximum age of data, seconds


@dataclass(frozen=True)
class Places:
    """The folders of a replay.

    Attributes:
        given: A spool, a folder that holds spools, or one that holds black boxes; None for the defaults.
        roots: The folders that hold spools by default. The first one also gets the spools of processes whose own folder
            does not exist here.
        boxes: The folder that holds black boxes; None for those in which ``configure()`` makes them by default.
    """

    given: Path | None
    roots: Sequence[Path]
    boxes: Path | None = None

    def __str__(self) -> str:
        return " and ".join(repr(str(root)) for root in ([self.given] if self.given is not None else self.roots))


def replay_all(places: Places, transports: Mapping[str, Transport], *, rejected: bool, foreign: bool) -> int:
    """Collect the black boxes of dead processes, deliver every spool that is found, and print the outcome.

    A spool that cannot be used is reported; the others are delivered.

    Args:
        places: Where boxes and spools are.
        transports: The transport of each signal.
        rejected: Also send the refused requests again.
        foreign: Also use folders of other users.

    Returns:
        The exit status: 0 if all requests were delivered.

    Raises:
        SpoolError: There is no spool.
    """
    found = _collect_and_find(places)
    problems = list(found.problems)
    folders = sorted({*found.folders, *(found.refused if rejected else ())})
    if not (folders or problems):
        raise SpoolError(nothing_left(places, found))
    if rejected:
        problems += _take_back(found.refused, foreign=foreign)
    for line in describe_age(folders, foreign=foreign):
        show(line, flush=True)  # before the progress bar
    total, used = ReplayOutcome(), 0
    for problem in problems:
        warn(problem)
    for folder in folders:
        try:
            with tqdm(unit="B", unit_scale=True, desc=folder.name, disable=None) as progress:
                outcome = replay(folder, transports, foreign=foreign, on_progress=partial(_show, progress))
        except (SpoolError, OSError) as error:
            problems.append(str(error))
            warn(error)
            continue
        used += 1
        total.add(outcome)
        for trouble in outcome.troubles:
            warn(trouble)
    show(_summary(total, used, len(problems)))
    if total.offline:
        warn(_describe_offline(places, total.offline))
    return 0 if total.complete and not problems else 1


def _collect_and_find(places: Places) -> Found:
    """Collect the black boxes, print their number, and return the spools."""
    given = places.given
    boxes_given = given is not None and holds_boxes(given)
    collected = collect_boxes(given if boxes_given else places.boxes, fallback=places.roots[0].absolute())
    if collected.boxes:
        number = _count(collected.boxes, "black box", "black boxes")
        show(f"collected {_count(collected.items, 'item')} from {number}", flush=True)
    for death in collected.deaths:
        show(str(death), flush=True)
    found = Found(problems=collected.problems)
    roots = [root.absolute() for root in places.roots if root.is_dir()] if given is None else [given]
    for root in () if boxes_given else roots:
        of_root = find_spools(root)
        found.folders += of_root.folders
        found.refused += of_root.refused
        found.problems += of_root.problems
    if given is None or boxes_given:
        found.folders += collected.spools
        return found
    for spool in collected.spools:
        if not spool.is_relative_to(given.absolute()):
            show(f"a black box is now in the spool {str(spool)!r}, which is not in {places}", flush=True)
    return found


def _describe_offline(places: Places, offline: set[str]) -> str:
    signals = [signal for signal in SIGNALS if signal in offline]
    variables = " and ".join(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in signals)
    return (
        f"the {' and '.join(signals)} in {places} remain there, because no endpoint is set for them: "
        f"set {variables}, or give --endpoint"
    )


def _show(progress: tqdm[Any], delivered: int, total: int) -> None:
    progress.total = total
    progress.update(delivered - progress.n)


def nothing_left(places: Places, found: Found) -> str:
    """Return the message for folders without segments."""
    left = "replay --rejected sends the refused requests again" if found.refused else "nothing is left to deliver"
    verb = "hold" if places.given is None and len(places.roots) > 1 else "holds"
    return f"{places} {verb} no spooled telemetry: {left}"


def _summary(total: ReplayOutcome, used: int, unusable: int) -> str:
    lost = ", ".join(f"{reason} {items:,}" for reason, items in sorted(total.lost.items()))
    parts = {
        "refused for their age, and set aside in rejected/": total.too_old,
        "refused, and set aside in rejected/": total.set_aside,
        f"lost ({lost})": total.lost.total(),
        "unreadable segments or records": total.unreadable,
        "folders that cannot be used": unusable,
    }
    if total.set_aside_requests and not total.set_aside + total.too_old:
        parts["requests without items, refused, and set aside in rejected/"] = total.set_aside_requests
    more = "".join(f"; {name}: {number:,}" for name, number in parts.items() if number)
    return f"delivered {_count(total.delivered, 'item')} from {_count(used, 'spool')}{more}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _take_back(folders: Iterable[Path], *, foreign: bool) -> list[str]:
    """Append the requests in ``rejected/`` of some spools to these spools again.

    Returns:
        Descriptions of problems.
    """
    problems = []
    for folder in folders:
        try:
            with closing(Spool(folder, foreign=foreign)) as spool:
                spool.take_back()
        except (SpoolError, OSError) as error:
            problems.append(str(error))
    return problems


def describe_age(folders: Iterable[Path], *, foreign: bool = False) -> list[str]:
    """Return lines with the age of the oldest data in some spools, and the limits of backends that it exceeds.

    The age is that of the requests. The data in a request is older by at most an export interval.
    """
    ages: dict[str, float] = {}
    for folder in folders:
        for signal in SIGNALS:
            try:
                oldest = next(Spool(folder, foreign=foreign).peek([signal]), None)
            except (SpoolError, OSError):
                break  # the replay itself reports it
            if oldest is not None:
                ages[signal] = max(ages.get(signal, 0.0), time.time() - oldest.created_ns / 1e9)
    if not ages:
        return []
    age = max(ages.values())
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - age))
    lines = [f"the oldest data is from {then}, {_words(age)} ago"]
    if ages.get("metrics", 0.0) > _PROMETHEUS:
        lines.append(
            "Prometheus refuses metrics of that age, and they are set aside, unless its "
            f"storage.tsdb.out_of_order_time_window is {int(ages['metrics'] / _HOUR) + 2}h or more"
        )
    if ages.get("logs", 0.0) > _LOKI:
        lines.append(
            "Loki refuses log records that are more than a week old, and they are set aside, unless its "
            "reject_old_samples is false"
        )
    return lines


def _words(seconds: float) -> str:
    for name, size in (("day", 24 * _HOUR), ("hour", _HOUR), ("minute", 60.0)):
        if seconds >= 2 * size:
            return f"{int(seconds / size)} {name}s"
    return "less than two minutes"
