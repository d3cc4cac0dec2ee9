"""Secret values that are never printed, and a mask that removes them from other text."""

from __future__ import annotations

import base64
import html
import json
import re
from collections import defaultdict
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Value = TypeVar("Value")

MASKED = "***"
_HEAD = 8  # characters: a beginning of this length is masked too, because a peer may truncate what it echoes
_WORD = 6  # characters: shorter secrets are masked only as whole words
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}  # unlike lower() it keeps the length
_SEPARATORS = re.compile(r"[\s,;=:]+")
_SCHEMES = {"basic", "bearer", "digest", "token", "apikey", "api-key", "api_key"}  # schemes of authorization


class Secret(Generic[Value]):
    """A value that no repr, str, copy or pickle reveals. Call ``reveal()`` to read it."""

    __slots__ = ("reveal",)

    reveal: Callable[[], Value]

    def __init__(self, value: Value) -> None:
        self.reveal = lambda: value  # a closure: a dump of all attributes does not print the value

    def __repr__(self) -> str:
        return f"Secret({MASKED})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.reveal() == other.reveal()

    def __hash__(self) -> int:
        return hash(self.reveal())

    def __copy__(self) -> Secret[Value]:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Secret[Value]:
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def masker(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces secrets in a text, in every form in which a peer may echo them.

    The forms are: unchanged, percent-encoded and -decoded, base64 (even inside a longer text), hexadecimal, and escaped
    as JSON, Python or HTML. Case is ignored. A secret with fewer than six characters is replaced only as a whole word.
    """
    forms = {form.translate(_ASCII_LOWER) for secret in secrets for form in _forms(secret)} - {""}
    by_head: dict[str, list[str]] = defaultdict(list)
    for form in forms:
        if len(form) >= _WORD:
            by_head[form[:_HEAD]].append(form)
    words = sorted((re.escape(form) for form in forms if len(form) < _WORD), key=len, reverse=True)
    short = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE) if words else None

    def mask(text: str) -> str:
        parts, position = [], 0
        for start, end in _found(text.translate(_ASCII_LOWER), by_head):
            if start >= position:
                parts += [text[position:start], MASKED]
            position = max(position, end)
        masked = "".join([*parts, text[position:]])
        return short.sub(MASKED, masked) if short is not None else masked

    return mask


def parts_of_header(value: str) -> Iterator[str]:
    """Yield the value of a header, and its secret parts: a token, or the user name and password of Basic."""
    yield value
    for part in _SEPARATORS.split(value):
        if len(part) >= _WORD and part.lower() not in _SCHEMES:
            yield part
    scheme, _, coded = value.strip().partition(" ")
    if scheme.lower() == "basic":
        decoded = _decoded(coded.strip())
        yield decoded
        yield from decoded.split(":", 1)


def _found(text: str, by_head: dict[str, list[str]]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each secret, or of the beginning of a secret, in a text in lower case."""
    lengths = sorted({len(head) for head in by_head}, reverse=True)
    for start in range(len(text)):
        for length in lengths:
            if forms := by_head.get(text[start : start + length]):
                found = (commonprefix((form, text[start : start + len(form)])) for form in forms)  # noqa: RUF071  of text
                yield start, start + max(map(len, found))
                break


def _forms(secret: str) -> set[str]:
    plain = {secret, secret.strip(), unquote(secret), unquote_plus(secret)}
    found = set(plain)
    for text in plain:
        content = text.encode(errors="surrogateescape")
        found |= {quote(content, safe=""), quote(content), quote_plus(content), quote(quote(content, safe=""))}
        found |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        found |= {repr(text)[1:-1], repr(content)[2:-1], html.escape(text), content.hex()}
        for coded in (content, text.encode("latin-1", "replace")):
            found |= set(_in_base64(coded))
    return found


def _in_base64(content: bytes) -> Iterator[str]:
    """Yield the base64 characters that depend on the content only, for each alignment of the content."""
    for before, skipped in enumerate((0, 2, 3)):
        usable = (before + len(content)) * 8 // 6  # characters without bits of the bytes that follow
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(bytes(before) + content).decode()[skipped:usable]
            if len(coded) >= _WORD:
                yield coded


def _decoded(coded: str) -> str:
    try:
        return base64.b64decode(coded + "==").decode(errors="replace")
    except ValueError:
        return ""
