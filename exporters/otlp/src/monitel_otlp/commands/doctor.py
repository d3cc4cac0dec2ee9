"""Say what the configuration is, and whether each endpoint takes telemetry."""

from __future__ import annotations

import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monitel_otlp.sdk.encoder import public_url
from monitel_otlp.config.environment import GRPC, HTTP, Environment
from monitel_otlp.request import REQUESTS, SIGNALS, FrozenRequest
from monitel_otlp.transport.http import Answer, Verdict
from monitel_otlp.transport.factory import make_encoders, make_senders
from monitel_otlp.config.settings import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from monitel_otlp.transport.http import Sender
    from monitel_otlp.config.settings import Endpoint, Settings

_TIMEOUT = 5.0  # seconds for an attempt
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"

#: What a failed attempt means, by the words of urllib3, OpenSSL, gRPC's core and the sender; the first that fits.
_MEANINGS = {
    r"HTTP request to an HTTPS server|BadStatusLine\('\\x15": """
        this port wants TLS: begin the endpoint with https://""",
    r"^HTTP (405|501)": """
        something listens there, but no OTLP receiver: check port and path""",
    r"^HTTP (408|429|50[234])|RESOURCE_EXHAUSTED": """
        the backend is there, but busy: a pipeline keeps everything and tries again""",
    r"^HTTP": "",  # the answer speaks for itself
    r"^ProxyError": """
        the proxy does not let it through: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY""",
    r"resol|Name or service not known|Domain name not found": """
        there is no host of this name: check it, and the DNS of this machine""",
    r"Connection refused": """
        nothing listens there: is the backend running, and is this its port? As a rule it is 4318 for HTTP and 4317
        for gRPC; in a container, localhost is the container itself""",
    r"WRONG_VERSION_NUMBER|100000f7": """
        this port speaks without TLS: begin the endpoint with http://""",
    r"(?i)certificate.verif|1000007d": """
        the backend's certificate is not trusted: OTEL_EXPORTER_OTLP_CERTIFICATE is to name the file of the authority
        that signed it, and the endpoint to have the host name that is in it""",
    r"(?i)(tls|ssl) handshake|unwrap failed": """
        TLS failed: check that the endpoint takes https://, OTEL_EXPORTER_OTLP_CERTIFICATE, and where the backend wants
        to know who you are, OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY""",
    r"BadStatusLine|RemoteDisconnected|ConnectionReset": f"""
        this looks like a gRPC port: set OTEL_EXPORTER_OTLP_PROTOCOL={GRPC} or use 4318. If it is none, it may want
        https://, or a proxy on the way hangs up""",
    r"http1|Expected SETTINGS|Socket closed|Connection reset": f"""
        this looks like an HTTP port: set OTEL_EXPORTER_OTLP_PROTOCOL={HTTP} or use 4317. If it is none, it may want
        https://""",
    r"(?i)timed out|no connection in time|DEADLINE_EXCEEDED": """
        no answer in time: a firewall swallows it, the address is wrong, or the backend hangs""",
}


def examine(endpoint: str | None, headers: Mapping[str, str], protocol: str | None) -> int:
    """Print the effective configuration, make an attempt with each signal, and say what is wrong.

    What is sent is a valid request with nothing in it. Values of headers, passwords and queries are not printed.

    Args:
        endpoint: As for :func:`monitel_otlp.configure`, and so are the others.
        headers: Sent along.
        protocol: Of all signals.

    Returns:
        The exit status: 0 if every signal that has an endpoint was accepted, and one has.

    Raises:
        ValueError: As of :func:`monitel_otlp.configure`.
    """
    with _warnings() as warnings:
        settings = resolve(endpoint, headers, protocol=protocol)
        routes = make_senders(settings, make_encoders(settings))
    with ThreadPoolExecutor() as pool:
        attempts = dict(zip(routes, pool.map(_attempt, routes, routes.values()), strict=True))
    accepted = [signal for signal, (answer, _) in attempts.items() if answer.verdict is Verdict.DELIVERED]
    for signal in SIGNALS:
        print(signal)
        if signal in settings.endpoints:
            _show(signal, settings.endpoints[signal])
        if signal not in attempts:
            _row("result", "offline: all of it is kept on disk; set OTEL_EXPORTER_OTLP_ENDPOINT to send it")
            continue
        answer, seconds = attempts[signal]
        _row("result", "accepted" if signal in accepted else f"FAILED: {answer.reason}", f"{seconds * 1000:.0f} ms")
        if advice := _advice(signal, answer, settings.endpoints[signal], accepted):
            _row("advice", advice)
    print("all signals")
    _show_common(settings)
    for problem in warnings:
        _row("problem", problem)
    print(f"{len(accepted)} of {len(settings.endpoints)} endpoints accept telemetry")
    return 0 if settings.endpoints and len(accepted) == len(settings.endpoints) else 1


def _attempt(signal: str, sender: Sender) -> tuple[Answer, float]:
    empty = FrozenRequest(signal, REQUESTS[signal]().SerializeToString(), 0, time.time_ns())
    began = time.perf_counter()
    try:
        return sender.send(empty, _TIMEOUT), time.perf_counter() - began
    finally:
        sender.close()


def _advice(signal: str, answer: Answer, endpoint: Endpoint, accepted: list[str]) -> str | None:
    """What to do, where the answer does not say it itself."""
    if answer.verdict is Verdict.DELIVERED:
        return None
    of_one_signal = endpoint.sources["endpoint"] == f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    if "HTTP 404" in answer.reason and of_one_signal:
        return f"the variable of one signal is the whole address, with /v1/{signal} at the end as a rule"
    if accepted and re.search("HTTP 404|UNIMPLEMENTED", answer.reason):
        return f"this backend takes no {signal}; a Collector needs a pipeline of {signal}"
    return next((" ".join(words.split()) for seen, words in _MEANINGS.items() if re.search(seen, answer.reason)), None)


def _show(signal: str, endpoint: Endpoint) -> None:
    shown = {
        "endpoint": re.sub(r"\?.*", "?...", public_url(endpoint.url)),
        "protocol": endpoint.protocol,
        "headers": ", ".join(sorted(endpoint.headers)) or "none",
        "timeout": f"{endpoint.timeout:g} s",
        "compression": endpoint.compression,
    }
    for name, value in shown.items():
        _row(name, value, endpoint.sources[name])
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        if (given := Environment().read(name, signal)) is not None:
            _row(name.lower().replace("_", " "), given[1], given[0])


def _show_common(settings: Settings) -> None:
    told = os.environ.get(_INTERVAL, "").strip() and not any(_INTERVAL in each for each in settings.problems)
    _row("interval", f"{settings.interval:g} s", _INTERVAL if told else "default")
    root = settings.spool_root.absolute()
    named = settings.endpoints and os.environ.get("XDG_STATE_HOME")
    _row("spool", f"{root}{_spool_state(root)}", "XDG_STATE_HOME" if named else "default")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        _row("problem", "OTEL_SDK_DISABLED=true: configure() records and sends nothing")


def _spool_state(root: Path) -> str:
    """What is to be said of the folder: whether it can be used, and what waits there."""
    nearest = next(folder for folder in (root, *root.parents) if os.access(folder, os.F_OK))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        return f": NOT USABLE, {nearest} is no folder that can be written"
    if any(root.rglob("*.spool")):
        return f"; what ended processes have left there goes by: python -m monitel_otlp replay {root}"
    return ""


def _row(name: str, value: str, source: str = "") -> None:
    print(f"  {name:<18} {value}{f'  ({source})' if source else ''}")


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the pipeline warns of inside ``with``: it is printed with the rest, so it goes nowhere else."""
    found: list[str] = []
    log = logging.getLogger("monitel.otlp")

    def keep(record: logging.LogRecord) -> bool:
        if record.getMessage() not in found:
            found.append(record.getMessage())
        return False

    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)
