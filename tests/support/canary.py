"""Random secrets, and the check that no output channel shows them."""

import base64
import json
import logging
import random
import string
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

_RANDOM = random.Random(4711)
_LENGTH = 20  # characters
_PIECE = 8  # characters: no piece of a secret of this length may be visible either
_DEPTH = 4  # levels of nested attributes that are searched


def new_canary() -> str:
    """Return a secret that does not occur anywhere by chance."""
    return "".join(_RANDOM.choices(string.ascii_letters + string.digits, k=_LENGTH))


def assert_canary_unseen(canary: str, *channels: Any) -> None:
    """Assert that no channel shows a canary, or eight characters of it, in plain text, base64 or hexadecimal.

    Channels are texts, bytes, log records, exceptions, files and folders, or any other object with its attributes.
    """
    forms = forms_of(canary)
    for channel in channels:
        for text in _texts(channel, _DEPTH):
            lowered = text.lower()
            for form in forms:
                assert form not in lowered, f"{canary!r} is in {type(channel).__name__}: {text[:2000]!r}"


def forms_of(canary: str) -> set[str]:
    """Return the texts that would reveal a canary, in lower case: its pieces, and its base64 and hexadecimal forms."""
    pieces = {canary[start : start + _PIECE] for start in range(max(1, len(canary) - _PIECE + 1))}
    pieces |= {canary.encode().hex()}
    for before in range(3):
        coded = base64.b64encode(bytes(before) + canary.encode()).decode().rstrip("=")
        pieces.add(coded[4 * bool(before) : -2])
    return {piece.lower() for piece in pieces}


def echoes_of(text: str) -> list[str]:
    return [
        text,
        quote(text, safe=""),
        json.dumps({"request": text}),
        repr(text),
        base64.b64encode(text.encode()).decode(),
        text.encode().hex(),
        text.upper(),
    ]


def _texts(channel: Any, depth: int) -> list[str]:
    if isinstance(channel, str):
        return [channel]
    if isinstance(channel, bytes):
        return [channel.decode("latin-1")]
    if isinstance(channel, logging.LogRecord):
        return [logging.Formatter("%(name)s %(message)s").format(channel), repr(channel.args), repr(channel.msg)]
    if isinstance(channel, BaseException):
        chained = [each for each in (channel.__cause__, channel.__context__) if each is not None]
        found = ["".join(traceback.format_exception(channel)), repr(channel), str(channel), repr(channel.args)]
        return found + [text for each in chained for text in _texts(each, depth)]
    if isinstance(channel, Path):
        files = [channel] if channel.is_file() else [each for each in channel.rglob("*") if each.is_file()]
        return [str(channel), *(text for each in files for text in _texts(each.read_bytes(), depth))]
    found = [repr(channel), str(channel)]
    if depth:
        inner = list(getattr(channel, "__dict__", {}).values())
        inner += [getattr(channel, name, None) for name in getattr(type(channel), "__slots__", ())]
        if isinstance(channel, dict):
            inner += [*channel, *channel.values()]
        elif isinstance(channel, (list, tuple, set)):
            inner += channel
        found += [text for each in inner if each is not None for text in _texts(each, depth - 1)]
    return found
