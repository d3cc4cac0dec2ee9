"""The stored form of a run's values: JSON of limited size, with a version."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

from monitel.console.stored_json import boolean, optional_whole, text, whole
from monitel.console.values.run_values import Progress, RunValues, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitel.console.values.run_values import Scalar

VERSION = 1
LIMIT_BYTES = 1 << 20

LONGEST_NAME = 200  # characters
LONGEST_TEXT = 1000  # characters of a value
MOST = 1000  # values, and parts of the configuration
MOST_ATTRIBUTES = 100

_CHECKSUM = 16  # hexadecimal digits
_NONFINITE = {"NaN", "Infinity", "-Infinity"}


class ValuesError(ValueError):
    """Raised for content that is not the values of a run in this version."""


def encode(values: RunValues) -> bytes:
    """Return the content of the file. Values for which there is no room are left out and counted, the last ones first.

    Raises:
        ValuesError: There is not even room for the names of the run.
    """
    kept = replace(
        values,
        attributes=_limited(values.attributes, MOST_ATTRIBUTES),
        config=_limited(values.config, MOST),
        values=tuple(islice(filter(_is_short, values.values), MOST)),
    )
    while len(content := _encoded(values, kept)) > LIMIT_BYTES:
        if not (kept.values or kept.config):
            raise ValuesError(f"have more than {LIMIT_BYTES} bytes")
        half = len(kept.values) // 2, len(kept.config) // 2
        kept = replace(kept, values=kept.values[: half[0]], config=dict(list(kept.config.items())[: half[1]]))
    return content


def _encoded(values: RunValues, kept: RunValues) -> bytes:
    limited = [(each.values, each.config, each.attributes) for each in (values, kept)]
    given, stored_ones = (sum(map(len, each)) for each in limited)
    stored = {
        "version": VERSION,
        "run": kept.run,
        "attempt": kept.attempt,
        "time_ns": kept.time_ns,
        "status": kept.status,
        "attributes": {name: _finite(each) for name, each in kept.attributes.items()},
        "config": {name: _finite(each) for name, each in kept.config.items()},
        "progress": [_finite(each) for each in kept.progress],
        "before": [_finite(each) for each in kept.before],
        "values": [
            [
                each.name,
                [(name, _finite(of_name)) for name, of_name in each.attributes],
                *(each.unit, _finite(each.value), each.time_ns, each.total, _finite(each.before)),
            ]
            for each in kept.values
        ],
        "left_out": given - stored_ones + values.left_out,
    }
    return json.dumps(stored, separators=(",", ":"), allow_nan=False).encode()


def limited_text(value: Scalar) -> Scalar:
    """Return a value as it is stored: the end of a long text is replaced by its length and a checksum of the whole.

    So texts that differ are stored as texts that differ. Idempotent.
    """
    if not isinstance(value, str) or len(value) <= LONGEST_TEXT:
        return value
    checksum = sha256(value.encode(errors="surrogatepass")).hexdigest()[:_CHECKSUM]
    end = f"... ({len(value):,} characters, SHA-256 {checksum}...)"
    return value[: LONGEST_TEXT - len(end)] + end


def decode(content: bytes) -> RunValues:
    """Return the values in a file.

    Raises:
        ValuesError: The content is damaged, or has another version.
    """
    if len(content) > LIMIT_BYTES:
        raise ValuesError(f"have more than {LIMIT_BYTES} bytes")
    try:
        stored = json.loads(content, parse_constant=_refused)
    except (ValueError, RecursionError):
        raise ValuesError("are not JSON") from None
    try:
        if type(stored["version"]) is int and stored["version"] > VERSION:
            raise ValuesError(f"have version {stored['version']}, which a newer monitel has written")
        if type(stored["version"]) is not int or stored["version"] != VERSION:
            raise ValuesError("have an unknown version")
        return _values(stored)
    except ValuesError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        raise ValuesError("are not the values of a run") from None


def _values(stored: Any) -> RunValues:
    return RunValues(
        run=text(stored["run"]),
        attempt=text(stored["attempt"]),
        time_ns=whole(stored["time_ns"]),
        status=text(stored["status"]),
        attributes=_scalars(stored["attributes"].items()),
        config=_scalars(stored["config"].items()),
        progress=_progress(*stored["progress"]),
        before=_progress(*stored["before"]),
        values=tuple(map(_value, _few(stored["values"]))),
        left_out=whole(stored["left_out"]),
    )


def _value(stored: Any) -> Value:
    name, attributes, unit, value, time_ns, total, before = stored
    pairs = tuple(_scalars(attributes).items())
    return Value(text(name), pairs, text(unit), _number(value), whole(time_ns), boolean(total), _number(before))


def _progress(steps: Any, last_step: Any, timed: Any, seconds: Any) -> Progress:
    return Progress(whole(steps), optional_whole(last_step), whole(timed), _number(seconds))


def _scalars(pairs: Any) -> dict[str, Scalar]:
    return {text(name): _scalar(each) for name, each in _few(pairs)}


def _few(stored: Any) -> Any:
    if len(stored) > MOST:
        raise ValueError(f"expected at most {MOST} values")
    return stored


def _scalar(stored: Any) -> Scalar:
    if stored is not None and type(stored) not in {bool, int, float, str}:
        raise ValueError("expected a text, a number, a boolean or null")
    return stored  # type: ignore[no-any-return]


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _number(stored: Any) -> float:
    if type(stored) is str and stored in _NONFINITE:
        return float(stored)
    if type(stored) not in {int, float}:
        raise ValueError("expected a number")
    float(stored)  # raises for an int that is too large
    return stored  # type: ignore[no-any-return]


def _is_short(value: Value) -> bool:
    texts = [value.name, value.unit, *(each for pair in value.attributes for each in pair if isinstance(each, str))]
    return len(value.attributes) <= MOST_ATTRIBUTES and max(map(len, texts)) <= LONGEST_NAME


def _limited(values: Mapping[str, Scalar], most: int) -> dict[str, Scalar]:
    """Return values of limited number and length, without those with longer names."""
    short = ((name, each) for name, each in values.items() if len(name) <= LONGEST_NAME)
    return {name: limited_text(each) for name, each in islice(short, most)}


def _finite(value: Scalar) -> Scalar:
    """Return a value as JSON has it: numbers that are not finite are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value
