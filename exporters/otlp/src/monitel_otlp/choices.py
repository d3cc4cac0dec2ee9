"""The environment variables of the arguments of ``configure()`` and of the exporters."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from monitel.variables import BOOLEAN, Variable, one_of
from monitel_otel import check_limits
from monitel_otlp.config.black_box import LEAST_BOX_SIZE, box_settings, check_box_size
from monitel_otlp.config.settings import DISTRIBUTIONS, spool_folder
from monitel_otlp.sigterm import check_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = ("all", "zero")


def check_bools(**arguments: object) -> None:
    """Check arguments that are True or False.

    Raises:
        TypeError: A value is not a bool.
    """
    for name, value in arguments.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r:.80}")


def check_ranks(ranks: object) -> None:
    """Check the ``ranks`` argument.

    Raises:
        ValueError: It is neither ``"all"`` nor ``"zero"``.
    """
    if ranks not in RANKS:
        raise ValueError(f"ranks must be 'all' or 'zero', got {ranks!r}")


def check_series_limit(limit: object) -> None:
    """Check the ``series_limit`` argument.

    Raises:
        TypeError: Not an int.
        ValueError: Below 1.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"series_limit must be an int, got {type(limit).__qualname__}: {limit!r:.80}")
    if limit < 1:
        raise ValueError(f"series_limit must be at least 1, got {limit}")


def check_logging_level(level: object) -> None:
    """Check the ``logging_level`` argument, which may be None.

    Raises:
        TypeError: Neither an int nor a str.
        ValueError: An unknown name.
    """
    if level is not None:
        logging.Handler(level)  # type: ignore[arg-type]  # it checks the type


def _level(text: str) -> int | str:
    level = int(text) if text.isdecimal() else text.upper()
    check_logging_level(level)
    return level


def _sigterm(text: str) -> bool | Literal["auto"]:
    sigterm: bool | Literal["auto"] = "auto" if text.lower() == "auto" else bool(BOOLEAN.parse(text))
    check_sigterm(sigterm)
    return sigterm


def _at_least_one(check: Callable[[int], None]) -> Variable:
    def parse(text: str) -> int:
        number = int(text)
        check(number)
        return number

    return Variable(parse, "an int of at least 1")


def _box_folder(text: str) -> Path | None:
    return box_settings(black_box_dir=text).folder


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
    "spool_dir": Variable(spool_folder, "the path of a folder, which may be new"),
    "distributions": one_of(DISTRIBUTIONS),
    "ranks": one_of(RANKS),
    "rank_attribute": BOOLEAN,
    "workers": BOOLEAN,
    "sigterm": Variable(_sigterm, "auto, false, or true in the main thread"),
    "logging_level": Variable(_level, "a level of Python's logging such as INFO"),
    "spans": BOOLEAN,
    "span_budget": _at_least_one(lambda budget: check_limits(budget, 1)),
    "span_steps": _at_least_one(lambda steps: check_limits(1, steps)),
    "step_traces": BOOLEAN,
    "series_limit": _at_least_one(check_series_limit),
    "run_events": BOOLEAN,
    "system": BOOLEAN,
    "black_box": BOOLEAN,
    "black_box_dir": Variable(_box_folder, "the path of a folder, which may be new"),
    "black_box_size": Variable(lambda text: check_box_size(int(text)), f"a number of bytes, at least {LEAST_BOX_SIZE}"),
}
