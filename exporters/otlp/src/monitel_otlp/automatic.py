"""The pipeline that is made without code.

This module is the entry point ``otlp`` of ``monitel.exporters``, by which ``monitel run`` finds :func:`check_options`,
:func:`begin` and :func:`attempt`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel_otlp.attempts import Attempt


def check_options(endpoint: str | None, headers: Mapping[str, str]) -> None:
    """Check options of ``monitel run``; a wrong one is a ValueError."""
    from monitel_otlp.config.settings import (
        is_header,  # late, as below: a process loads what it needs
        resolve,
    )

    if not all(is_header(*each) for each in headers.items()):
        raise ValueError("--header: expected NAME=VALUE (the argument is not shown, because it may hold a token)")
    try:
        resolve(endpoint)
    except ValueError as error:
        raise ValueError(f"--endpoint: {error}") from None


def begin() -> None:
    """Make the pipeline without code, unless the program has begun to make one itself."""
    if "monitel_otlp.configuration" not in sys.modules:
        from monitel_otlp.configuration import configure_automatically

        configure_automatically()


def attempt(*given: Any) -> Attempt:
    """Return what delivers for ``monitel run``; the arguments are those of :class:`Attempt`."""
    from monitel_otlp.attempts import Attempt

    return Attempt(*given)


class Instrumentor:
    """Makes a pipeline without code for ``opentelemetry-instrument``, as ``monitel run`` does.

    It is the entry point ``monitel`` of ``opentelemetry_instrumentor``. The pipeline sends what the program records by
    monitel, beside the exporters that OpenTelemetry's distribution has made for what it records by OpenTelemetry's API.
    Nothing is made in launchers, and in processes that a recorded process has started, unless they have a rank.
    """

    def instrument(self, **_given: Any) -> None:
        """Make the pipeline, unless there is one."""
        from monitel.runs.exporters import begin

        begin("monitel")

    def uninstrument(self, **_given: Any) -> None:
        """End the pipeline that was made without code."""
        if (configuration := sys.modules.get("monitel_otlp.configuration")) is not None:
            configuration.end_automatic()
