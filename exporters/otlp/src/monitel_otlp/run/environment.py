"""The environment variables of a command, with which its Python processes find telemetry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from monitel_otlp.config.run_folder import PROCESS, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The folder of the ``sitecustomize`` module for the processes of the command.
INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")

_SIGNALS = ("METRICS", "LOGS", "TRACES")
_OTLP = "OTEL_EXPORTER_OTLP_"


def with_options(
    environment: Mapping[str, str],
    *,
    endpoint: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    protocol: str | None = None,
    service_name: str | None = None,
) -> dict[str, str]:
    """Return environment variables with those that stand for options of ``monitel run``.

    An endpoint or protocol replaces the variables of single signals, too. Headers are added.
    """
    found = dict(environment)
    for name, value in (("ENDPOINT", endpoint), ("PROTOCOL", protocol)):
        if value is not None:
            for signal in _SIGNALS:
                found.pop(f"{_OTLP}{signal}_{name}", None)
            found[f"{_OTLP}{name}"] = value
    if headers:
        more = ",".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in headers)
        names = [name for signal in _SIGNALS if (name := f"{_OTLP}{signal}_HEADERS") in found]
        for name in (f"{_OTLP}HEADERS", *names):
            found[name] = f"{found[name]},{more}" if found.get(name, "").strip() else more
    if service_name is not None:
        found["OTEL_SERVICE_NAME"] = service_name
    return found


def with_injection(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return environment variables for a command: its Python processes are recorded, and belong to this run.

    Args:
        environment: The variables.
        folder: The folder of the run.
    """
    found = without_process(environment)
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path != INJECTED]
    found["PYTHONPATH"] = os.pathsep.join([INJECTED, *others]) if others != [""] else INJECTED
    found[VARIABLE] = folder
    return found


def without_process(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a process that is recorded even if a recorded process has started it."""
    return {name: value for name, value in environment.items() if name != PROCESS}
