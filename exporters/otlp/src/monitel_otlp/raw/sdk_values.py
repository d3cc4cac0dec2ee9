"""Conversion of the SDK's resources, scopes and attributes to plain values, and back."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from monitel_otlp.messages.attributes import plain_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import SupportsIndex

    from monitel_otlp.messages.attributes import Plain

PlainAttributes = tuple["dict[str, Plain]", int]


def plain_bounded(attributes: Mapping[str, Any] | None) -> PlainAttributes:
    """Return attributes and the number of attributes that the SDK has dropped."""
    return plain_attributes(attributes), attributes.dropped if isinstance(attributes, BoundedAttributes) else 0


def bounded(plain: dict[str, Any], dropped: int) -> dict[str, Any] | BoundedAttributes:
    """Return attributes for a new object of the SDK."""
    if not dropped:
        return plain
    attributes = BoundedAttributes(attributes=plain, immutable=False)
    attributes.dropped = dropped
    return attributes


def text(value: str | None) -> str | None:
    """Return text as an exact str."""
    return value if value is None or type(value) is str else str.__str__(value)


def integer(value: SupportsIndex | None) -> int | None:
    """Return a whole number as an exact int."""
    return value if value is None or type(value) is int else int(index(value))


class Owners:
    """Assigns numbers to the resources and scopes of records, for the header of a raw segment."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._owners: list[Any] = []  # references that keep the ids valid
        self.plain: list[Any] = []

    def number(self, owner: Resource | InstrumentationScope | None) -> int:
        """Return the number of a resource or a scope, the same for the same object."""
        number = self._numbers.get(id(owner))
        if number is None:
            self.plain.append(_plain_owner(owner))
            number = self._numbers[id(owner)] = len(self._owners)
            self._owners.append(owner)
        return number


def _plain_owner(owner: Resource | InstrumentationScope | None) -> tuple[Any, ...] | None:
    if owner is None:
        return None
    attributes = plain_attributes(owner.attributes)
    if isinstance(owner, Resource):
        return "resource", attributes, text(owner.schema_url)
    return "scope", attributes, text(owner.schema_url), text(owner.name), text(owner.version)


def owner_of(plain: tuple[Any, ...] | None) -> Any:
    """Return a resource, a scope, or None, from its plain values."""
    if plain is None:
        return None
    kind, attributes, schema_url, *more = plain
    if kind == "resource":
        return Resource(attributes, schema_url)
    name, version = more
    return InstrumentationScope(name, version, schema_url, attributes)
