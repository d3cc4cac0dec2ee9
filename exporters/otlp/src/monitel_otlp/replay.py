"""Deliver what an ended process has left in its spool."""

from __future__ import annotations

from threading import Event, RLock
from typing import TYPE_CHECKING

from tqdm import tqdm

from monitel_otlp.outbox import Outbox
from monitel_otlp.request import SIGNALS
from monitel_otlp.sender import Verdict
from monitel_otlp.spool import Spool, SpoolError
from monitel_otlp.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel_otlp.sender import Sender

_never = Event()  # never set: a pause that Ctrl-C ends
_LONGEST_ASKED = 60.0  # somebody is watching
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds after which a request is tried again


def spool_folders(root: Path) -> list[Path]:
    """The spools in a folder: it may be one itself, or hold those of many processes.

    Raises:
        SpoolError: There is none.
    """
    if not root.is_dir():
        raise SpoolError(f"there is no folder {str(root)!r}")
    folders = sorted({path.parent for path in root.rglob("*.spool")})
    if not folders:
        raise SpoolError(f"{str(root)!r} holds no spooled telemetry: nothing is left to deliver")
    return folders


def replay(folder: Path, routes: dict[str, Sender]) -> int:
    """Deliver one spool, oldest first, and remove what was acknowledged.

    Interrupted or refused, it goes on from there when it is called again; the request that was under way may arrive
    twice.

    Args:
        folder: A folder that :func:`spool_folders` gave.
        routes: How to send.

    Returns:
        Items delivered.

    Raises:
        SpoolError: Its process is still running, or the backend does not take it; what is left stays.
    """
    spool = Spool(folder)
    spool.load()
    tally = Tally()
    try:
        begin = spool.size_bytes
        with tqdm(total=begin, unit="B", unit_scale=True, desc=folder.name, disable=None) as progress:
            for signal in SIGNALS:
                if spool.oldest(signal) is not None:
                    if signal not in routes:
                        raise SpoolError(f"there are {signal} to deliver, and no endpoint for them: give --endpoint")
                    outbox = Outbox(signal, routes[signal], spool, tally, RLock())
                    try:
                        _empty(outbox, lambda: progress.update(begin - spool.size_bytes - progress.n))
                    finally:
                        outbox.end()
                    if outbox.trouble is not None:
                        why = f"{routes[signal].url}: {outbox.trouble.reason}"
                        raise SpoolError(f"{why}; the rest is still in {folder}, run this again")
    finally:
        spool.close()
    return sum(tally.total(signal) for signal in SIGNALS)


def _empty(outbox: Outbox, on_progress: Callable[[], object]) -> None:
    """Deliver until nothing is left, or the backend has not taken the oldest request for a while."""
    for pause in (*_PAUSES, None):
        while outbox.deliver_one():
            on_progress()
        if outbox.trouble is None or outbox.trouble.verdict is Verdict.REFUSED or pause is None:
            return
        asked = outbox.trouble.retry_after
        _never.wait(pause if asked is None else min(asked, _LONGEST_ASKED))
