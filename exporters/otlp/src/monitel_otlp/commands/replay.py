"""Delivery of the spools of ended processes."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from monitel_otlp.delivery.replay import ReplayOutcome, replay
from monitel_otlp.messages.request import SIGNALS
from monitel_otlp.spool.discovery import find_spools
from monitel_otlp.spool.spool import Spool, SpoolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from monitel_otlp.spool.discovery import Found
    from monitel_otlp.transport.answer import Transport

_HOUR = 3600.0
_PROMETHEUS, _LOKI = 1 * _HOUR, 7 * 24 * _HOUR  # the default maximum age of data, seconds


def replay_all(root: Path, transports: Mapping[str, Transport], *, rejected: bool, foreign: bool) -> int:
    """Deliver every spool below a folder, and print the outcome.

    A spool that cannot be used is reported; the others are delivered.

    Args:
        root: A spool, or a folder that holds spools.
        transports: The transport of each signal.
        rejected: Also send the refused requests again.
        foreign: Also use folders of other users.

    Returns:
        The exit status: 0 if all requests were delivered.

    Raises:
        SpoolError: There is no spool.
    """
    found = find_spools(root)
    problems = list(found.problems)
    folders = sorted({*found.folders, *(found.refused if rejected else ())})
    if not (folders or problems):
        raise SpoolError(nothing_left(root, found))
    if rejected:
        problems += _take_back(found.refused, foreign=foreign)
    for line in describe_age(folders, foreign=foreign):
        print(line, flush=True)  # before the progress bar
    total, used = ReplayOutcome(), 0
    for problem in problems:
        print(f"monitel_otlp: {problem}", file=sys.stderr)
    for folder in folders:
        try:
            with tqdm(unit="B", unit_scale=True, desc=folder.name, disable=None) as progress:
                outcome = replay(folder, transports, foreign=foreign, on_progress=partial(_show, progress))
        except (SpoolError, OSError) as error:
            problems.append(str(error))
            print(f"monitel_otlp: {error}", file=sys.stderr)
            continue
        used += 1
        total.add(outcome)
        for trouble in outcome.troubles:
            print(f"monitel_otlp: {trouble}", file=sys.stderr)
    print(_summary(total, used, len(problems)))
    if total.offline:
        print(f"monitel_otlp: {_describe_offline(root, total.offline)}", file=sys.stderr)
    return 0 if total.complete and not problems else 1


def _describe_offline(root: Path, offline: set[str]) -> str:
    signals = [signal for signal in SIGNALS if signal in offline]
    variables = " and ".join(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" for signal in signals)
    return (
        f"the {' and '.join(signals)} in {str(root)!r} remain there, because no endpoint is set for them: "
        f"set {variables}, or give --endpoint"
    )


def _show(progress: tqdm[Any], delivered: int, total: int) -> None:
    progress.total = total
    progress.update(delivered - progress.n)


def nothing_left(root: Path, found: Found) -> str:
    """Return the message for a folder without segments."""
    left = "replay --rejected sends the refused requests again" if found.refused else "nothing is left to deliver"
    return f"{str(root)!r} holds no spooled telemetry: {left}"


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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
