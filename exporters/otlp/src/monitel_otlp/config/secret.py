"""Secret values that are never printed, and a mask that removes them from other text."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, NoReturn, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus

Value = TypeVar("Value")

MASKED = "***"
_HEAD = 8  # characters: a word with the beginning of a secret is masked, because a peer may truncate what it echoes
_WORD = 6  # characters: shorter secrets are masked only as whole words
_SEPARATORS = re.compile(r"[\s,;=:\"']+")
_ESCAPE = re.compile(r"\\+(?:u([0-9a-f]{4})|x([0-9a-f]{2}))?", re.IGNORECASE)
_LAYERS = 3  # of escapes, which a peer and the quotation of its answer add
_SCHEMES = {"basic", "bearer", "digest", "token", "apikey", "api-key", "api_key"}  # schemes of authorization


class Secret(Generic[Value]):
    """A value that no repr, str or pickle reveals. Call ``reveal()`` to read it."""

    __slots__ = ("reveal",)

    reveal: Callable[[], Value]

    def __init__(self, value: Value) -> None:
        self.reveal = lambda: value  # a closure: a dump of all attributes does not print the value

    def __repr__(self) -> str:
        return f"Secret({MASKED})"

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")


def masker(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces the words of a text that contain secrets, in any form that a peer may echo.

    The forms are: unchanged, percent-encoded and -decoded, base64 (even inside a longer text), hexadecimal, and escaped
    as JSON, Python or HTML, also several times and with other characters escaped. Case is ignored.
    """
    words = sorted({word for secret in secrets for form in _forms(secret) for word in form.split()}, key=len)
    heads = "|".join({re.escape(each[:_HEAD]) for word in words for each in (word, _plain(word)) if len(each) >= _WORD})
    short = "|".join(re.escape(word) for word in reversed(words) if len(word) < _WORD)
    contains = re.compile(heads or r"\Z.", re.IGNORECASE)  # by default nothing
    is_short = re.compile(rf"(?<!\w)(?:{short})(?!\w)" if short else r"\Z.", re.IGNORECASE)

    def is_secret(word: str) -> bool:
        return bool(contains.search(word) or contains.search(_plain(word)))

    def mask(text: str) -> str:
        masked = re.sub(r"\S+", lambda word: MASKED if is_secret(word[0]) else word[0], text)
        return is_short.sub(MASKED, masked)

    return mask


def parts_of_header(value: str) -> Iterator[str]:
    """Yield the value of a header, and its secret parts: a token, or the user name and password of Basic."""
    scheme, _, coded = value.strip().partition(" ")
    yield coded if scheme.lower() in _SCHEMES and coded else value
    for part in _SEPARATORS.split(value):
        if len(part) >= _WORD and part.lower() not in _SCHEMES:
            yield part
    if scheme.lower() == "basic":
        with suppress(ValueError):
            decoded = base64.b64decode(coded.strip() + "==").decode(errors="replace")
            yield decoded
            yield from decoded.split(":", 1)


def _forms(secret: str) -> set[str]:
    plain = {secret, unquote(secret), unquote_plus(secret)}
    found = set(plain)
    for text in plain:
        content = text.encode(errors="surrogateescape")
        found |= {quote(content, safe=""), quote(content), quote_plus(content), quote(quote(content, safe=""))}
        found |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        found |= {repr(text)[1:-1], repr(content)[2:-1], html.escape(text), content.hex()}
        for coded in (content, text.encode("latin-1", "replace")):
            found |= set(_in_base64(coded))
    return found


def _plain(text: str) -> str:
    """Return a text without backslashes, percent encoding and entities, in any number of layers up to three."""
    for _ in range(_LAYERS):
        text = _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)) if found.lastindex else "", text)
        text = html.unescape(unquote(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))
    return text


def _in_base64(content: bytes) -> Iterator[str]:
    """Yield the base64 characters that depend on the content only, for each alignment of the content."""
    for before, skipped in enumerate((0, 2, 3)):
        usable = (before + len(content)) * 8 // 6  # characters without bits of the bytes that follow
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(bytes(before) + content).decode()[skipped:usable]
            if len(coded) >= _WORD:
                yield coded
