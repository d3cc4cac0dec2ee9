"""The pipeline that is made without code: the entry point ``otlp`` of ``monitel.exporters``, for ``monitel run``."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from monitel_otlp.attempts import CommandTelemetry

_log = logging.getLogger("monitel.otlp")


def check_endpoint(endpoint: str) -> None:
    """Raise a ValueError for an endpoint of ``monitel run`` that is wrong."""
    from monitel_otlp.config.settings import resolve  # late, as below: a process loads what it needs

    try:
        resolve(endpoint)
    except ValueError as error:
        raise ValueError(f"--endpoint: {error}") from None


def begin() -> None:
    """Make the pipeline without code, unless the program has begun to make one itself."""
    if "monitel_otlp.configuration" not in sys.modules:
        from monitel_otlp.configuration import configure_automatically

        configure_automatically()


def start(name: str, folder: Path, run_id: str) -> tuple[object, Callable[[float], object]] | None:
    """Make the pipeline of a run that :func:`monitel.start` begins; without an endpoint its folder is the spool."""
    from monitel.process.launcher import sdk_is_disabled, service_name
    from monitel_otlp.config.settings import resolve
    from monitel_otlp.configuration import configure, ends_given

    if sdk_is_disabled():
        return None
    if ends_given():
        _log.warning("monitel.start() ends the pipeline of configure(): call start() first, and configure() after it")
    given: dict[str, Any] = {"service_name": service_name(name)}
    if not resolve(None).endpoints and not os.environ.get("MONITEL_SPOOL_DIR"):
        given["spool_dir"] = folder
    pipeline = configure(resource_attributes={"training.run.id": run_id}, **given)
    return pipeline, pipeline.shutdown


def attempt(*given: Any) -> CommandTelemetry:
    """Return what delivers for ``monitel run``; the arguments are those of :class:`CommandTelemetry`."""
    from monitel_otlp.attempts import CommandTelemetry

    return CommandTelemetry(*given)


class Instrumentor:
    """Makes a pipeline without code: the entry point ``monitel`` of ``opentelemetry_instrumentor``.

    Nothing is made in launchers, and in processes that a recorded process has started, unless they have a rank.
    """

    def instrument(self, **_given: Any) -> None:
        from monitel.runs.exporters import begin

        begin("monitel")

    def uninstrument(self, **_given: Any) -> None:
        if (configuration := sys.modules.get("monitel_otlp.configuration")) is not None:
            configuration.end_automatic()
