"""Attributes as exact built-in values, which can be written to disk, and as fields of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

if TYPE_CHECKING:
    from collections.abc import Callable

    Scalar = str | bool | int | float

#: A value that :mod:`marshal` writes and reads unchanged: exact built-in types only.
Plain = Union[None, bool, int, float, str, bytes, "list[Plain]", "tuple[Plain, ...]", "dict[str, Plain]"]

_EXACT = frozenset({type(None), bool, int, float, str, bytes})
_TO_EXACT: tuple[tuple[type, Callable[[Any], Plain]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes),
)


def plain_value(value: Any) -> Plain:
    """Return the value of an attribute, or the body of a log record, as exact built-in values.

    Raises:
        TypeError: The protocol has no such type.
    """
    if type(value) in _EXACT:
        return value  # type: ignore[no-any-return]
    for kind, exact in _TO_EXACT:
        if isinstance(value, kind):
            return exact(value)
    if isinstance(value, Sequence):
        return [plain_value(each) for each in value]
    if isinstance(value, Mapping):
        return {str.__str__(str(key)): plain_value(each) for key, each in value.items()}
    raise TypeError(f"an attribute must be a str, bool, int, float, bytes, sequence or mapping, got {type(value)}")


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Plain]:
    """Return attributes as exact built-in values. Attributes that the protocol cannot hold are omitted."""
    if not attributes:
        return {}
    # The mappings of the SDK take a lock for each item, but not in copy().
    found: Any = attributes.copy() if hasattr(attributes, "copy") else attributes
    if type(found) is not dict:
        found = dict(found)
    for key, value in found.items():
        if type(value) not in _EXACT or type(key) is not str:
            return _plain_items(found)
    return found  # type: ignore[no-any-return]


def _plain_items(attributes: Mapping[str, Any]) -> dict[str, Plain]:
    found: dict[str, Plain] = {}
    for key, value in attributes.items():
        try:
            found[str.__str__(key)] = plain_value(value)
        except (TypeError, RecursionError):
            continue
    return found


def write_attributes(field: Any, attributes: Mapping[str, Any]) -> None:
    """Append attributes to a repeated field of ``KeyValue``.

    Fields are assigned one by one, because message constructors with keywords take twice as long.

    Raises:
        TypeError: A value has an unsupported type.
        ValueError: An int does not fit in 64 bits, or a text cannot be encoded in UTF-8.
    """
    add = field.add
    for key, value in attributes.items():
        pair = add()
        pair.key = key
        kind = type(value)
        if kind is str:
            pair.value.string_value = value
        elif kind is float:
            pair.value.double_value = value
        elif kind is int:
            pair.value.int_value = value
        else:
            write_value(pair.value, value)


def write_value(field: Any, value: Any) -> None:
    """Fill an empty ``AnyValue`` with exact built-in values. None leaves it empty, which is the protocol's null.

    Raises:
        TypeError: A value has an unsupported type.
        ValueError: An int does not fit in 64 bits, or a text cannot be encoded in UTF-8.
    """
    if isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, str):
        field.string_value = value
    elif isinstance(value, int):
        field.int_value = value
    elif isinstance(value, float):
        field.double_value = value
    elif isinstance(value, bytes):
        field.bytes_value = value
    elif isinstance(value, Mapping):
        field.kvlist_value.SetInParent()
        write_attributes(field.kvlist_value.values, value)
    elif value is not None:
        field.array_value.SetInParent()
        for each in value:
            write_value(field.array_value.values.add(), each)


def key_values(attributes: Mapping[str, Scalar | Sequence[Scalar]]) -> list[KeyValue]:
    """Return attributes as messages that several points or spans can share."""
    found = []
    for key, value in attributes.items():
        pair = KeyValue(key=key, value=AnyValue())
        write_value(pair.value, value)
        found.append(pair)
    return found
