"""The resource of all requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from monitel_otel.scope import SCHEMA_URL
from monitel_otlp.messages.attributes import plain_attributes, write_attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource


def encode_resource(resource: Resource) -> bytes:
    """Return a resource and its schema as a serialized ``ResourceMetrics`` without metrics.

    The message has the same form as a ``ResourceLogs`` without log records, and a ``ResourceSpans`` without spans.
    """
    message = ResourceMetrics(schema_url=resource.schema_url or SCHEMA_URL)
    message.resource.SetInParent()
    write_attributes(message.resource.attributes, plain_attributes(resource.attributes))
    return message.SerializeToString()
