"""The arguments of ``configure()`` and of the exporters: their environment variables, their checks, the black box."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitel.blackbox.folder import automatic_roots
from monitel.os_threads import in_main_thread
from monitel.variables import BOOLEAN, Variable, at_least, one_of

DISTRIBUTIONS = ("percentiles", "histogram", "both")
#: Bytes that the box of a process may use, without a ``black_box_size``.
BOX_SIZE = 16 << 20
#: The least ``black_box_size``, in bytes.
LEAST_BOX_SIZE = 64 << 10


@dataclass(frozen=True)
class BoxSettings:
    """The effective settings of the black box.

    Attributes:
        enabled: False if no box is made.
        folder: The folder that holds the box of each process; None to choose one in memory.
        size: Bytes that the box of one process may use.
    """

    enabled: bool = True
    folder: Path | None = None
    size: int = BOX_SIZE

    @property
    def root(self) -> Path | None:
        """The folder in which the box is made; None for no box."""
        if not self.enabled or self.folder is not None:
            return self.folder if self.enabled else None
        return next((root for root in automatic_roots() if root.parent.is_dir()), None)


def box_settings(
    black_box: bool = True, black_box_dir: str | os.PathLike[str] | None = None, black_box_size: int = BOX_SIZE
) -> BoxSettings:
    """Return the settings for the arguments of ``configure()`` that concern the black box."""
    folder = None if black_box_dir is None else Path(black_box_dir).absolute()
    return BoxSettings(black_box, folder, black_box_size)


def _check_level(name: str, level: Any) -> Any:
    try:
        logging.Handler(level)
    except (TypeError, ValueError) as error:  # a wrong type; an unknown name
        raise type(error)(f"{name} must be a level of logging such as 'INFO' or 20, got {level!r:.80}") from None
    return level


def _level(text: str) -> int | str:
    return _check_level("", int(text) if text.isdecimal() else text.upper())  # type: ignore[no-any-return]  # as given


def _check_sigterm(_name: str, sigterm: object) -> None:
    if not isinstance(sigterm, bool) and sigterm != "auto":
        raise TypeError(f'sigterm must be True, False or "auto", got {sigterm!r:.80}')
    if sigterm is True and not in_main_thread():
        raise ValueError("sigterm=True requires the main thread: Python sets signal handlers only there")


def _sigterm(text: str) -> object:
    sigterm = text.lower() if text.lower() == "auto" else BOOLEAN.parse(text)
    _check_sigterm("", sigterm)
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
    "sigterm": Variable(_sigterm, "auto, false, or true in the main thread", check=_check_sigterm),
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
