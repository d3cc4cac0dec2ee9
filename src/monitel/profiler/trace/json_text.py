"""JSON that every reader accepts, from values of any type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LARGEST = 2**1000  # readers do not accept larger numbers
_MAX_DEPTH = 8  # values nested deeper are converted to text


def json_text(value: Any) -> str:
    """Return ``value`` as JSON. A value that JSON cannot represent, such as NaN or a tensor, becomes text."""
    return json.dumps(_plain(value, _MAX_DEPTH), separators=(",", ":"))


def quoted(text: str) -> str:
    """Return a str as JSON."""
    return json.dumps(well_formed(text))


def one_line(text: str) -> str:
    """Return JSON text on one line, with spaces after colons: HolisticTraceAnalysis finds ``"rank": 0`` by them.

    Raises:
        ValueError: The text is not valid JSON. NaN and Infinity, which Python accepts, are not valid either.
    """
    return json.dumps(json.loads(text, parse_constant=_refuse))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def well_formed(text: str) -> str:
    """Return text that can be encoded: unpaired surrogates become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return {well_formed(str(key)): _plain(each, depth - 1) for key, each in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, depth - 1) for each in value]
    if value is None or type(value) is bool or (type(value) in {int, float} and abs(value) < _LARGEST):
        return value  # not a NaN: comparisons with it are false
    try:
        return well_formed(str(value))
    except Exception as error:
        return f"<{type(value).__qualname__}: str() raised {type(error).__qualname__}>"
