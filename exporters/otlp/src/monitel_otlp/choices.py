"""The environment variables and checks of the arguments of ``configure()`` and of the exporters."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from monitel.variables import BOOLEAN, Variable, at_least, one_of
from monitel_otlp.config.black_box import LEAST_BOX_SIZE
from monitel_otlp.config.settings import DISTRIBUTIONS
from monitel_otlp.sigterm import check_sigterm


def _check_level(_name: str, level: Any) -> Any:
    logging.Handler(level)  # it raises for an unknown name and for a wrong type
    return level


def _level(text: str) -> int | str:
    return _check_level("", int(text) if text.isdecimal() else text.upper())  # type: ignore[no-any-return]  # as given


def _sigterm(text: str) -> object:
    sigterm = text.lower() if text.lower() == "auto" else BOOLEAN.parse(text)
    check_sigterm("", sigterm)
    return sigterm


def _check_folder(name: str, value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, got {type(value).__qualname__}")
    path = Path(value)
    if "\0" in str(path):
        raise ValueError(f"{name} must not contain a null character, got {str(path)!r}")
    for part in (path, *path.parents):
        if os.path.isfile(part):  # noqa: PTH113  Path's own raises where it may not look
            raise ValueError(f"{name} must be a folder, or a new path, got {str(path)!r}: {str(part)!r} is a file")
    return path


def _folder(name: str) -> Variable:
    expected = "the path of a folder, which may be new"
    return Variable(lambda text: _check_folder(name, text), expected, check=_check_folder)


#: The variable of each argument of ``configure()``. A str is the name of the standard variable that has the value, or
#: the reason why there is none.
CHOICES: dict[str, Variable | str] = {
    "service_name": "OTEL_SERVICE_NAME",
    "endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
    "headers": "OTEL_EXPORTER_OTLP_HEADERS",
    "export_interval": "OTEL_METRIC_EXPORT_INTERVAL",
    "resource_attributes": "OTEL_RESOURCE_ATTRIBUTES",
    "resource": "an object",
    "spool_dir": _folder("spool_dir"),
    "distributions": one_of(DISTRIBUTIONS),
    "ranks": one_of(("all", "zero")),
    "rank_attribute": BOOLEAN,
    "workers": BOOLEAN,
    "sigterm": Variable(_sigterm, "auto, false, or true in the main thread", check=check_sigterm),
    "logging_level": Variable(_level, "a level of Python's logging such as INFO", check=_check_level),
    "spans": BOOLEAN,
    "span_budget": at_least(1),
    "span_steps": at_least(1),
    "step_traces": BOOLEAN,
    "series_limit": at_least(1),
    "run_events": BOOLEAN,
    "system": BOOLEAN,
    "black_box": BOOLEAN,
    "black_box_dir": _folder("black_box_dir"),
    "black_box_size": at_least(LEAST_BOX_SIZE, "a number of bytes"),
}
