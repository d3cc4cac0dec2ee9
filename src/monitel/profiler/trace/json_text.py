"""JSON that every reader takes, from values of any kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_LARGEST = 2**1000  # beyond it, readers do not take it for a number
_DEEPEST = 8  # what is nested deeper is shown as text


def json_text(value: Any) -> str:
    """``value`` as JSON: what JSON has no word for, such as NaN or a tensor, as text."""
    return json.dumps(_plain(value, _DEEPEST), separators=(",", ":"))


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """A str as JSON."""
    return json.dumps(well_formed(text))


def checked(text: str) -> str:
    """Text that is JSON, on one line.

    Raises:
        ValueError: It is not; NaN and Infinity, which Python reads, are not either.
    """
    return json.dumps(json.loads(text, parse_constant=_refuse), separators=(",", ":"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def well_formed(text: str) -> str:
    """Text that can be encoded: halves of surrogate pairs become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return {well_formed(str(key)): _plain(each, depth - 1) for key, each in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, depth - 1) for each in value]
    if value is None or type(value) is bool or (type(value) in {int, float} and abs(value) < _LARGEST):
        return value  # a NaN is not less than anything
    try:
        return well_formed(str(value))
    except Exception as error:
        return f"<{type(value).__qualname__}: str() raised {type(error).__qualname__}>"
