"""Raw forms written to disk and read again: helpers to compare the result with requests that are encoded at once."""

from __future__ import annotations

import marshal
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource

from monitel_otlp.messages.records import LEVELS, count_records
from monitel_otlp.raw.decoders import decoders
from monitel_otlp.sdk.official_encoders import encode_resource

if TYPE_CHECKING:
    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.raw.forms import RawForm


BLOCK = 256
RESOURCE = Resource({"service.name": "train", "training.rank": 3}, "https://example.test/schema")
ENCODED_RESOURCE = encode_resource(RESOURCE)
EXACT = (type(None), bool, int, float, str, bytes)


class Word(str):
    """A subclass of str."""

    __slots__ = ()


class Number(IntEnum):
    """A subclass of int."""

    ONE = 1


def is_exact(value: Any) -> bool:
    """Return True if a value and all values inside it have exact built-in types."""
    if type(value) in (list, tuple):
        return all(map(is_exact, value))
    if type(value) is dict:
        return all(type(key) is str and is_exact(each) for key, each in value.items())
    return type(value) in EXACT


def replayed(form: RawForm) -> list[FrozenRequest]:
    """Marshal and unmarshal a raw form block by block, and return the decoded requests."""
    items = list(form.items)
    assert is_exact(form.header)
    assert is_exact(items)
    decoder = decoders()[form.header[0]](marshal.loads(marshal.dumps(form.header, 4)))
    blocks = [items[begin : begin + BLOCK] for begin in range(0, len(items), BLOCK)]
    requests = []
    for block in blocks:
        found = decoder.decode(marshal.loads(marshal.dumps(block, 4)))
        assert all(request.items <= BLOCK and request.created_ns == form.header[4] for request in found)
        requests += found
    return requests


def records_of(requests: list[FrozenRequest]) -> list[tuple[Any, ...]]:
    """Return each record or span with its resource, scope and weight, in order."""
    found = []
    for request in requests:
        message: Any = request.message()
        resources, scopes, records = LEVELS[request.signal]
        weights = iter(weights_of(request))
        for resource in getattr(message, resources):
            for scope in getattr(resource, scopes):
                for record in getattr(scope, records):
                    owner = resource.resource.SerializeToString(), resource.schema_url, scope.schema_url
                    found.append((*owner, scope.scope.SerializeToString(), exact_bytes(record), next(weights)))
    return found


def exact_bytes(message: Any) -> bytes:
    """Return the serialized message."""
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def weights_of(request: FrozenRequest) -> list[int]:
    """Return the weights of a request, one for each record."""
    records = count_records(request.message(), LEVELS[request.signal])
    weights = list(memoryview(request.weights).cast("I")) if request.weights else [int(bool(request.items))] * records
    assert records == len(weights)
    assert request.items == sum(weights)
    return weights


class Lost(list[tuple[str, str, int]]):
    """A list of reported losses."""

    def __call__(self, *each: Any) -> None:
        """Add a loss."""
        self.append(each)


text = st.text(st.characters(codec="utf-8"), max_size=6)
integers = st.integers(-(2**63), 2**63 - 1)
scalars = text | st.booleans() | integers | st.floats() | st.sampled_from([Word("w"), Number.ONE])
numpy_scalars = st.sampled_from([np.float64(1.5), np.int64(2)])
