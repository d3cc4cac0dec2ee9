"""The arguments of ``configure()`` and of the exporters: their environment variables and their checks."""

from __future__ import annotations

import logging
from typing import Any

from monitel.blackbox.settings import BOX_CHOICES, BOX_SIZE, FOLDERS
from monitel.process.os_threads import in_main_thread
from monitel.variables import BOOLEAN, Group, Variable, at_least, one_of

DISTRIBUTIONS = ("percentiles", "histogram", "both")


def _check_level(name: str, level: Any) -> None:
    try:
        logging.Handler(level)
    except (TypeError, ValueError) as error:  # a wrong type; an unknown name
        raise type(error)(f"{name} must be a level of logging such as 'INFO' or 20, got {level!r:.80}") from None


_LEVEL = Variable(
    lambda text: int(text) if text.isdecimal() else text.upper(),
    "a level of Python's logging such as INFO",
    check=_check_level,
)


def _check_sigterm(_name: str, sigterm: object) -> None:
    if not isinstance(sigterm, bool) and sigterm != "auto":
        raise TypeError(f'sigterm must be True, False or "auto", got {sigterm!r:.80}')
    if sigterm is True and not in_main_thread():
        raise ValueError("sigterm=True requires the main thread: Python sets signal handlers only there")


_SIGTERM = Variable(
    lambda text: text.lower() if text.lower() == "auto" else BOOLEAN.parse(text),
    "auto, false, or true in the main thread",
    check=_check_sigterm,
)


#: The variable of each option of ``configure()``, in the order of its arguments. A str is the name of the standard
#: variable that has the value, or the reason why there is none.
CHOICES: dict[str, Variable | str] = {
    "endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "service_name": "OTEL_SERVICE_NAME",
    "spans": BOOLEAN,
    "span_budget": at_least(1),
    "span_steps": at_least(1),
    "step_traces": BOOLEAN,
    "logging_level": _LEVEL,
    "system": BOOLEAN,
    "headers": "OTEL_EXPORTER_OTLP_HEADERS",
    "protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
    "export_interval": "OTEL_METRIC_EXPORT_INTERVAL",
    "resource_attributes": "OTEL_RESOURCE_ATTRIBUTES",
    "resource": "an object",
    "ranks": one_of(("all", "zero")),
    "rank_attribute": BOOLEAN,
    "workers": BOOLEAN,
    "distributions": one_of(DISTRIBUTIONS),
    "series_limit": at_least(1),
    "spool_dir": FOLDERS["spool_dir"],
    **BOX_CHOICES,
    "sigterm": _SIGTERM,
    "run_events": BOOLEAN,
}
#: The arguments of ``configure()`` that may be mappings of options.
GROUPS = {
    "spans": Group(
        {"budget": ("span_budget", None), "steps": ("span_steps", 1), "step_traces": ("step_traces", False)}
    ),
    "black_box": Group({"folder": ("black_box_dir", None), "size": ("black_box_size", BOX_SIZE)}, of_path="folder"),
}
