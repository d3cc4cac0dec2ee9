"""Deliver what an ended process has left in its spool."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from tqdm import tqdm

from monitel_otlp.exporters import RangeExporter, RecordExporter, WindowExporter
from monitel_otlp.mapping import choose_mapping
from monitel_otlp.request import SIGNALS
from monitel_otlp.sender import Verdict
from monitel_otlp.senders import encoder_arguments, make_senders
from monitel_otlp.spool import Spool, SpoolError
from monitel_otlp.tally import Tally
from monitel_otlp.windows import WindowQueue

if TYPE_CHECKING:
    from pathlib import Path

    from monitel_otlp.request import FrozenRequest
    from monitel_otlp.sender import Sender
    from monitel_otlp.settings import Settings

_wait = Event()  # never set: a pause that Ctrl-C ends
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


def senders(settings: Settings) -> dict[str, Sender]:
    """How to send each signal that has an endpoint."""

    def put(_request: object) -> None:
        raise AssertionError("only the route is asked for")

    metrics, logs, traces = (encoder_arguments(settings, signal) for signal in SIGNALS)
    windows = WindowExporter(WindowQueue(1), choose_mapping(0), put, Tally(), metrics)
    records = RecordExporter(put, Tally(), logs)
    spans = RangeExporter(put, Tally(), traces)
    routes = {"metrics": windows.learn_route, "logs": records.learn_route, "traces": spans.learn_route}
    return make_senders(settings, routes)


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
    delivered = 0
    try:
        with tqdm(total=spool.size_bytes, unit="B", unit_scale=True, desc=folder.name, disable=None) as progress:
            for signal in SIGNALS:
                while (request := spool.oldest(signal)) is not None:
                    if signal not in routes:
                        raise SpoolError(f"there are {signal} to deliver, and no endpoint for them: give --endpoint")
                    if _deliver(spool, routes[signal], request):
                        delivered += request.items
                    before = spool.size_bytes
                    spool.remove_oldest(signal)
                    progress.update(before - spool.size_bytes)
    finally:
        spool.close()
    return delivered


def _deliver(spool: Spool, sender: Sender, request: FrozenRequest) -> bool:
    for pause in (*_PAUSES, None):
        answer = sender.send(request)
        if answer.verdict is Verdict.DELIVERED:
            if answer.rejected:
                tqdm.write(f"{sender.url} left {answer.rejected} items out: {answer.reason}")
            return True
        if answer.verdict is Verdict.REJECTED:
            path = spool.set_aside(request, answer.reason)
            tqdm.write(f"{sender.url} rejected a request ({answer.reason}); it is in {path}")
            return False
        if answer.verdict is Verdict.REFUSED or pause is None:
            break
        _wait.wait(answer.retry_after if answer.retry_after is not None else pause)
    raise SpoolError(f"{sender.url}: {answer.reason}; the rest is still in {spool.folder}, run this again")
