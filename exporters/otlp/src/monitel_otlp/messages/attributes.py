"""Attributes as exact built-in values, which can be written to disk, and as fields of the protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from opentelemetry.proto.common.v1.common_pb2 import KeyValueList

from monitel.attributes import attribute_name, checked_value, text_of
from monitel.process.failures import warn_once
from monitel.text import json_value

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

_log = logging.getLogger("monitel.otlp")

#: A value that :mod:`marshal` writes and reads unchanged: exact built-in types only.
Plain = Union[None, bool, int, float, str, bytes, "list[Plain]", "tuple[Plain, ...]", "dict[str, Plain]"]

_FIELDS = {bool: "bool_value", str: "string_value", int: "int_value", float: "double_value", bytes: "bytes_value"}
_EXACT = {*_FIELDS, type(None)}
_LEVELS = 16  # of lists and dicts in each other; deeper ones become text


def plain_value(value: object, levels: int = _LEVELS) -> Any:
    """Return a value that the protocol can hold: a scalar, a list, a dict or None, and the text of anything else."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        if isinstance(value, Mapping) and levels:
            found = ((text_of(name), each) for name, each in value.items())
            return {name: plain_value(each, levels - 1) for name, each in found if name}
        if isinstance(value, Sequence) and not isinstance(value, str) and levels:
            return [plain_value(each, levels - 1) for each in value]
        return checked_value("", value)
    except Exception:  # not a scalar, an int beyond 64 bits, text that UTF-8 cannot hold, or a class that raises
        return text_of(value) or f"<{type(value).__qualname__} without a text>"


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Plain]:
    if not attributes:
        return {}
    # The mappings of the SDK take a lock for each item, but not in copy().
    given: Any = attributes.copy() if hasattr(attributes, "copy") else attributes
    if type(given) is dict and all(type(value) in _EXACT and type(key) is str for key, value in given.items()):
        return given
    return {text_of(name): plain_value(value) for name, value in given.items()}


class Limits:
    """The limits of attributes in the SDK's variables: long texts are truncated, the oldest attributes are dropped.

    A warning is logged once for each name, which ``noun`` describes. A limit is None if there is none.
    """

    def __init__(self, noun: str, count: int | None, length: int | None) -> None:
        self._noun = noun
        self._count = count
        self._length = length

    def exceeded(self, number: int) -> bool:
        """Return True if :meth:`apply` may change so many attributes."""
        return self._length is not None or (self._count is not None and number > self._count)

    def apply(self, name: str, attributes: dict[str, Plain]) -> int:
        """Change the attributes of an event or range, and return the number of dropped attributes."""
        if self._length is not None:
            for key, value in attributes.items():
                if (short := _truncated(value, self._length)) != value:
                    attributes[key] = short
                    self._warn(name, f"a text longer than {self._length} characters is truncated")
        if self._count is None or len(attributes) <= self._count:
            return 0
        oldest = list(attributes)[: len(attributes) - self._count]
        for key in oldest:
            del attributes[key]
        self._warn(name, f"more than {self._count} attributes; the first ones are dropped")
        return len(oldest)

    def _warn(self, name: str, problem: str) -> None:
        warn_once(_log, "%s %r: %s", self._noun, name, problem, key=(self._noun, name))


def _truncated(value: Plain, length: int) -> Plain:
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, (list, tuple)):
        return [_truncated(each, length) for each in value]
    return {key: _truncated(each, length) for key, each in value.items()} if isinstance(value, dict) else value


def write_attributes(field: Any, attributes: Mapping[str, Any], *, scalars: bool = False) -> None:
    """Append attributes to a repeated field of ``KeyValue``; with ``scalars`` only of type str, int, float and bool.

    Their names become what each backend takes. Fields are assigned one by one, because message constructors with
    keywords take twice as long. Raises TypeError or ValueError for what the protocol cannot hold.
    """
    add = field.add
    for key, value in attributes.items():
        pair = add()
        pair.key = attribute_name(key)
        kind = type(value)
        if kind is str:
            pair.value.string_value = value
        elif kind is float:
            pair.value.double_value = value
        elif kind is int:
            pair.value.int_value = value
        elif kind is bool:
            pair.value.bool_value = value
        elif scalars:
            raise TypeError(f"expected a str, int, float or bool, got {kind}")
        else:
            write_value(pair.value, value)


def write_value(field: Any, value: Plain) -> None:
    """Fill an empty ``AnyValue``. None leaves it empty, which is the protocol's null. Raises as above.

    A float that is not finite is text: Loki stores an empty line for a body with one, as Collectors make JSON of it.
    """
    if type(value) is float:
        value = json_value(value)
    kind = type(value)
    if kind in _FIELDS:
        setattr(field, _FIELDS[kind], value)
    elif isinstance(value, dict):
        field.kvlist_value.SetInParent()
        for key, each in value.items():
            pair = field.kvlist_value.values.add()
            pair.key = key
            write_value(pair.value, each)
    elif isinstance(value, (list, tuple)):
        field.array_value.SetInParent()
        for each in value:
            write_value(field.array_value.values.add(), each)
    elif value is not None:
        raise TypeError(f"the protocol has no {kind}")


def key_values(attributes: Mapping[str, Plain]) -> list[KeyValue]:
    """Return attributes as messages that several points or spans can share."""
    found = KeyValueList()
    write_attributes(found.values, attributes)
    return [*found.values]
