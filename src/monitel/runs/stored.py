"""Stored JSON: dataclasses, named tuples and mappings, which a reader checks completely, once, against their types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_PLAIN = {bool, int, float, str, NoneType}
_Stored = TypeVar("_Stored")


class StoredError(ValueError):
    """Raised for content that cannot be used. It is not in the message."""


def dump(value: Any) -> bytes:
    """Return the JSON of a value. A mapping with other keys than texts must be given as a list of pairs."""
    return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> dict[str, Any]:
    return (
        dict(value) if isinstance(value, Mapping) else {each.name: getattr(value, each.name) for each in fields(value)}
    )


def load(kind: type[_Stored], content: bytes, version: int) -> _Stored:
    """Return the object in a file: a dataclass, whose parts have exactly the types of their annotations."""
    try:
        values = json.loads(content)
        if values.pop("version") == version:
            found: _Stored = _checked(kind, values)
            return found
    except Exception:  # it may be damaged in any way
        raise StoredError("is damaged") from None
    raise StoredError(f"has another version than {version}, the one that this monitel reads")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(hint: Any, value: Any) -> Any:
    """Return a value of JSON as one of a type. Raises for one that is not of this type."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    exact = parts if float in parts else {kind} & _PLAIN
    if type(value) in exact:
        return value
    if kind in {Union, UnionType}:
        for each in parts:
            with suppress(TypeError, ValueError):
                return _checked(each, value)
    elif (kind is float and type(value) is int) or issubclass(kind, Enum):
        return kind(value)
    elif kind is Mapping:  # one with other keys than texts is a list of pairs
        pairs = value.items() if isinstance(value, dict) else value
        return {_checked(parts[0], name): _checked(parts[1], each) for name, each in pairs}
    elif issubclass(kind, tuple) and isinstance(value, list):
        hints = [parts[0]] * len(value) if parts[1:] == (...,) else parts or _hints(kind).values()
        return (tuple if kind is tuple else kind._make)(_checked(*pair) for pair in zip(hints, value, strict=True))
    elif _hints(kind) and isinstance(value, dict):
        return kind(**{name: _checked(_hints(kind)[name], each) for name, each in value.items()})
    raise TypeError
