"""Report of the effective configuration, with a test of each endpoint."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monitel.blackbox.discovery import find_boxes, find_spools
from monitel.blackbox.folder import FolderError, open_root
from monitel.blackbox.record import SIGNALS
from monitel.blackbox.settings import BoxSettings, box_settings
from monitel.process.launcher import sdk_is_disabled
from monitel.text import CommandError, replay_command, show
from monitel.variables import defaults_of, name_of_variable, read_variables
from monitel_otlp.config.endpoint import Endpoint
from monitel_otlp.config.settings import GRPC, HTTP, Settings, has_delta_temporality, resolve

if TYPE_CHECKING:
    import argparse

    from monitel_otlp.transport.answer import Answer, Transport

_TIMEOUT = 5.0  # seconds per attempt

#: Advice for a failed attempt, by a pattern of its reason. The first match is used.
_ADVICE = {
    r"not HTTP: \\x15": "this port expects TLS: begin the endpoint with https://",
    r"^HTTP 501": "the server on this port is not an OTLP receiver: check port and path",
    r"^HTTP (408|429|50[234])|RESOURCE_EXHAUSTED": "the backend is busy: a pipeline keeps everything and retries",
    r"^HTTP|proxy's address": "",  # the answer needs no explanation
    r"^proxy|HTTP proxy returned": "the proxy does not connect: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    r"resol|Name or service not known|Domain name not found": "no host has this name: check it, and the DNS here",
    r"Connection refused": "no server listens on this port: check that the backend runs, and that this is its port "
    "(usually 4318 for HTTP, 4317 for gRPC); in a container, localhost is the container itself",
    r"WRONG_VERSION_NUMBER|100000f7": "this port does not use TLS: begin the endpoint with http://",
    r"has expired|not yet valid": "renew the backend's certificate, or correct the clock here",
    r"(?i)certificate.verif|1000007d|hostname verif": "the backend's certificate is not trusted: set "
    "OTEL_EXPORTER_OTLP_CERTIFICATE to the file of the authority that signed it, and use the host name of the "
    "certificate in the endpoint",
    r"(?i)(tls|ssl) handshake|unwrap failed": "TLS failed: check that the endpoint accepts https://, "
    "OTEL_EXPORTER_OTLP_CERTIFICATE, and if the backend asks for a client certificate, "
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
    r"BadStatusLine|RemoteDisconnected|ConnectionReset|not HTTP": "this looks like a gRPC port: set "
    f"OTEL_EXPORTER_OTLP_PROTOCOL={GRPC} or use 4318. Otherwise it may expect https://, or a proxy closes it",
    r"http1|Failed parsing HTTP/2|Socket closed|Connection reset": "this looks like an HTTP port: set "
    f"OTEL_EXPORTER_OTLP_PROTOCOL={HTTP} or use 4317. Otherwise it may expect https://, or a client certificate",
    r"(?i)timed out|no connection in time|DEADLINE_EXCEEDED": "no answer in time: a firewall drops the packets, the "
    "address is wrong, or the backend hangs",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("doctor", help="show the configuration, and send an empty request to each endpoint")
    command.add_argument("--endpoint", metavar="URL", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    command.set_defaults(run=_doctor, interrupted="interrupted before every endpoint had answered")


def _doctor(arguments: argparse.Namespace) -> int:
    """Print the effective configuration, make one attempt per signal, and print advice for each failure.

    The request is valid and empty. Values of headers, passwords and queries are not printed. The exit status is 0 if
    every endpoint has accepted the request; without one, if everything can be kept.
    """
    from monitel_otlp.configuration import CHOICES, GROUPS, configure  # late: the help needs no OpenTelemetry
    from monitel_otlp.transport import make_transports  # late, as above
    from monitel_otlp.transport.answer import Consequence  # late, as above

    with _warnings() as warnings:
        chosen = read_variables(CHOICES, defaults_of(configure, GROUPS))
        folder = chosen.pop("spool_dir", None)
        box = {name: chosen.pop(name) for name in ("black_box", "black_box_dir", "black_box_size") if name in chosen}
        try:
            settings = resolve(arguments.endpoint, spool_dir=folder, distributions=chosen.get("distributions"))
            transports = make_transports(settings)
        except ValueError as error:
            raise CommandError(str(error)) from error
        has_delta_temporality(), sdk_is_disabled()  # which warn of wrong values
    with ThreadPoolExecutor() as pool:
        attempts = dict(zip(transports, pool.map(_attempt, transports, transports.values()), strict=True))
    accepted = [signal for signal, (answer, _) in attempts.items() if answer.consequence is Consequence.DELIVERED]
    for signal in SIGNALS:
        show(signal)
        if signal in settings.off:
            _row("result", "off: nothing is recorded", f"OTEL_{signal.upper()}_EXPORTER=none")
            continue
        if signal not in attempts:
            _row("result", "offline: telemetry is kept on disk; set OTEL_EXPORTER_OTLP_ENDPOINT to send it")
            continue
        _show(settings.endpoints[signal], transports[signal])
        answer, seconds = attempts[signal]
        outcome = "accepted" if signal in accepted else "FAILED"
        _row("result", ": ".join(filter(None, (outcome, answer.reason))), f"{seconds * 1000:.0f} ms")
        if advice := _advice(signal, answer, accepted):
            _row("advice", advice)
    show("all signals")
    usable = _show_common(settings, folder)
    _show_black_box(box_settings(**box))
    for name, value in chosen.items():
        _row(name.replace("_", " "), str(value), name_of_variable(name))
    for problem in warnings:
        _row("problem", problem)
    show(f"{len(accepted)} of {len(transports)} endpoints accept telemetry")
    return 0 if len(accepted) == len(transports) and (transports or (usable and not warnings)) else 1


def _attempt(signal: str, transport: Transport) -> tuple[Answer, float]:
    from monitel_otlp.messages.request import REQUESTS, Request  # late, as above
    from monitel_otlp.transport.answer import Answer, Consequence  # late, as above

    empty = Request(signal, REQUESTS[signal]().SerializeToString())
    began = time.perf_counter()
    try:
        answer = transport.send(empty, _TIMEOUT)
        if "at least one valid stream is required" in answer.reason:  # Loki, which takes others
            answer = Answer(Consequence.DELIVERED)
        return answer, time.perf_counter() - began
    finally:
        transport.close()


def _advice(signal: str, answer: Answer, accepted: list[str]) -> str | None:
    if signal in accepted:
        return None
    if accepted and re.search("HTTP 404|UNIMPLEMENTED", answer.reason):
        return f"this backend does not accept {signal}; a Collector needs a pipeline for {signal}"
    return next((words for seen, words in _ADVICE.items() if re.search(seen, answer.reason)), None)


def _show(endpoint: Endpoint, transport: Transport) -> None:
    shown = {
        "endpoint": endpoint.address.public,
        "protocol": endpoint.protocol,
        "headers": ", ".join(sorted(endpoint.headers)) or "none",
        "timeout": f"{endpoint.timeout:g} s",
        "compression": endpoint.compression,
    }
    for name, value in shown.items():
        _row(name, value, endpoint.sources[name])
    for name, path in endpoint.certificates._asdict().items():
        if path is not None:
            _row(name.replace("_", " "), path, endpoint.sources[name])
    if transport.proxy is not None:
        _row("proxy", transport.proxy.public, "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY")


def _show_common(settings: Settings, folder: Path | None) -> bool:
    """Print what all signals share; return whether there is a place for what is not delivered."""
    _row("interval", f"{settings.interval:g} s", "default" if settings.idle_interval else "OTEL_METRIC_EXPORT_INTERVAL")
    root = settings.spool_root
    source = "XDG_STATE_HOME" if os.environ.get("XDG_STATE_HOME") else "default"
    source = source if folder is None else name_of_variable("spool_dir")
    nearest, state = next(folder for folder in (root, *root.parents) if os.access(folder, os.F_OK)), ""
    usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if not usable:
        state = f": NOT USABLE, {nearest} is not a folder, or cannot be written"
    elif root.is_dir() and not root.is_symlink() and find_spools(root).folders:
        state = f"; deliver the telemetry of ended processes with: {replay_command(str(root))}"
    _row("spool", f"{root}{state}", source)
    if sdk_is_disabled():
        _row("problem", "OTEL_SDK_DISABLED=true: configure() records and sends nothing")
    return usable


def _show_black_box(settings: BoxSettings) -> None:
    """Print where black boxes go, and how many wait to be collected. The folder may be made."""
    source = name_of_variable("black_box" if not settings.enabled else "black_box_dir")
    boxes, place = find_boxes(settings.folder), "off"
    if settings.enabled:
        try:
            with closing(open_root(settings.folder)) as root:
                place = f"{root.path} (memory), at most {settings.size:,} bytes per process"
        except FolderError as error:
            place = f"NONE: {error}"
            boxes.problems = [each for each in boxes.problems if each not in str(error)]
        source = source if settings.folder else "default"
    _row("black box", place, source)
    waiting = Counter(each.parent for each in (*boxes.dead, *boxes.ended))
    for folder, number in sorted(waiting.items()):
        killed = f"{number} {'process' if number == 1 else 'processes'}"
        _row("killed", f"{killed}; deliver the telemetry with: {replay_command(str(folder))}")
    for problem in boxes.problems:
        _row("problem", problem)


def _row(name: str, value: str, source: str = "") -> None:
    show(f"  {name:<18} {value}{f'  ({source})' if source else ''}")


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings of the pipeline inside ``with``, instead of logging them."""
    found: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.getMessage() not in found:
            found.append(record.getMessage())
        return False

    with ExitStack() as undo:
        for log in map(logging.getLogger, ("monitel", "monitel.otlp")):
            log.addFilter(keep)
            undo.callback(log.removeFilter, keep)
        yield found
