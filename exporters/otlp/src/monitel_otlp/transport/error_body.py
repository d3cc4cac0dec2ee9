"""Text of the body of an HTTP answer that reports an error."""

from __future__ import annotations

import json

from monitel_otlp.transport.protobuf_fields import fields

_CODE, _MESSAGE = 1, 2  # field numbers of google.rpc.Status
_BEGINS = {b"\x08", b"\x12"}  # tags of these fields: control characters, with which no text begins
_EXAMINED = 1000  # characters by which text is distinguished from binary content


def error_text(body: bytes) -> str:
    """Return the message of a ``google.rpc.Status`` in protobuf or JSON, or another text in quotation marks.

    The type of the content is found by its first bytes: Loki declares its Status as ``application/octet-stream``.

    Args:
        body: The body, which may be truncated. Content that is neither a Status nor text is described by its size.
    """
    if body[:1] in _BEGINS:
        found = dict(fields(body))
        message = found.get(_MESSAGE)
        if isinstance(message, bytes) and message:
            return message.decode(errors="replace")
        if isinstance(code := found.get(_CODE), int):
            return f"status code {code}, without a message"
    if body[:1] == b"{" and (text := _json_message(body)):
        return text
    text = body.decode(errors="replace")
    examined = text[:_EXAMINED]
    readable = sum(each != "\ufffd" and (each.isprintable() or each.isspace()) for each in examined)
    return repr(text) if 2 * readable >= len(examined) else f"a body of {len(body)} bytes that is not text"


def _json_message(body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""
