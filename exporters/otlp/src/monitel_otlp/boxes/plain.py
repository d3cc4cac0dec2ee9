"""Plain values of a black box in ``marshal`` format, decoded into values that every reader can show, add and compare.

A checksum shows that a file is complete. It does not show that its values are those that monitel writes.
"""

from __future__ import annotations

import marshal
from typing import Any

MARSHAL = 4  #: The version of the format, which every Python since 3.4 reads.
DEPTH = 32  #: Mappings and sequences in each other. Protobuf reads no attribute that is deeper.

_LEAST, _MOST = -(2**63), 2**64  # of an int
_SIMPLE = frozenset({type(None), bool, float, str, bytes})
_SIMPLE_OR_INT = _SIMPLE | {int}
_SEQUENCES = frozenset({list, tuple})
_TEXT = frozenset({str})
_SHOWN_BITS = 1024


def decode(content: bytes) -> Any:
    """Return the plain values in bytes whose checksum is right.

    The result consists of None, bool, int in 64 bits, float, str, bytes, and of lists, tuples and mappings with texts
    as keys, at most 32 in each other. Texts take the place of other values.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    try:
        value = marshal.loads(content)  # noqa: S302  the folder belongs to this user
    except (ValueError, EOFError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return value if _is_plain(value, DEPTH) else _made_plain(value, DEPTH)


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is int:
        return bool(_LEAST <= value <= _MOST)
    if not depth:
        return False
    if kind is dict:
        return _TEXT.issuperset(map(type, value)) and _are_plain([*value.values()], depth)
    return kind in _SEQUENCES and _are_plain(value, depth)


def _are_plain(values: list[Any] | tuple[Any, ...], depth: int) -> bool:
    if not _SIMPLE_OR_INT.issuperset(map(type, values)):
        return all(_is_plain(each, depth - 1) for each in values)
    ints = [each for each in values if type(each) is int]
    return not ints or bool(min(ints) >= _LEAST and max(ints) <= _MOST)


def _made_plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is int:
        return value if _LEAST <= value <= _MOST else _large(value)
    if kind is not dict and kind not in _SEQUENCES:
        return f"a value of the type {kind.__name__}"
    if not depth:
        return "..."
    if kind is dict:
        return {_key(key): _made_plain(each, depth - 1) for key, each in value.items()}
    return kind(_made_plain(each, depth - 1) for each in value)


def _key(key: Any) -> str:
    plain = _made_plain(key, 0)
    return plain if type(plain) is str else str(plain)


def _large(number: int) -> str:
    return hex(number) if number.bit_length() <= _SHOWN_BITS else f"an int of {number.bit_length():,} bits"


def texts(values: Any) -> tuple[str, ...]:
    """Return a sequence as texts without NUL, which a path cannot hold.

    Raises:
        ValueError: It is not a sequence of such texts.
    """
    if type(values) not in _SEQUENCES:
        raise ValueError("expected a sequence of texts")
    return tuple(map(text, values))


def text(value: Any) -> str:
    """Return a text without NUL.

    Raises:
        ValueError: It is another value.
    """
    if type(value) is not str or "\0" in value:
        raise ValueError("expected a text")
    return value


def whole(value: Any, least: int = 0) -> int:
    """Return an int.

    Raises:
        ValueError: It is another value, or smaller.
    """
    if type(value) is not int or value < least:
        raise ValueError("expected a whole number")
    return value
