"""Attributes as the protocol has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Scalar = str | bool | int | float


def key_values(attributes: Mapping[str, Scalar | Sequence[Scalar]]) -> list[KeyValue]:
    """Attributes with values that the protocol can hold."""
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: Scalar | Sequence[Scalar]) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[_value(each) for each in value]))
