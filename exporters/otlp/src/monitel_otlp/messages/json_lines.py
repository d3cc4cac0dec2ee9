"""Requests as OTLP JSON, for the otlpjsonfile receiver and the HTTP endpoint of the Collector."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

if TYPE_CHECKING:
    from monitel_otlp.messages.request import FrozenRequest

_IDS = {"traceId", "spanId", "parentSpanId"}


def json_line(request: FrozenRequest) -> str:
    """Return a request as one line, with ids in hex and enums as integers, as the OTLP specification requires."""
    message = MessageToDict(request.message(), use_integers_for_enums=True)
    line = json.dumps(_with_hex_ids(message), ensure_ascii=False, separators=(",", ":"))
    return line if line.isprintable() else "".join(map(_printable, line))


def _printable(character: str) -> str:
    """Return a character, or its escape sequence in JSON: it could control a terminal."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[begin : begin + 4]}" for begin in range(0, len(units), 4))


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: base64.b64decode(each).hex() if key in _IDS and isinstance(each, str) else _with_hex_ids(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    return value
