"""Names, units and attributes that the application chooses: the checks, and the forms that each exporter can send.

An attribute value is a str that UTF-8 can hold, an int of 64 bits, a float or a bool.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from monitel.process.failures import ignored, pass_on

AttributeValue = str | bool | int | float

__all__ = ["INT64_MAX", "INT64_MIN", "ascii_text", "escape_surrogates", "fits_int64", "recordable", "typed_items"]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_NO_ATTRIBUTES: Mapping[str, AttributeValue] = MappingProxyType({})
_LONGEST_UNIT = 63  # characters, of OpenTelemetry
_UNITS = {"°C": "Cel", "°F": "[degF]", "°": "deg", "μ": "u", "Ω": "Ohm", "Å": "Ao", "·": ".", "⋅": "."}
_NOT_IN_UNITS = r"[^!-~]+"
_ASCII_ALNUM = re.compile("[0-9A-Za-z]").search
_NUMPY_KINDS: dict[str, Callable[[Any], AttributeValue]] = {"b": bool, "i": int, "u": int, "f": float}


def fits_int64(number: int) -> bool:
    """Return True if an int fits in 64 bits, with its sign."""
    return INT64_MIN <= number <= INT64_MAX


def whole(value: object) -> int | None:
    """Return a value that is an integer, or the text of one; None for any other."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None  # noqa: PLR2004  64 bits


def element_of(value: Any) -> Any:
    """Return the element of an array or a tensor of one element, and any other value; a masked one is a TypeError."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    masked_arrays = sys.modules.get("numpy.ma")
    if masked_arrays is not None and masked_arrays.is_masked(value):
        raise TypeError("a masked element is not a number")
    return item()


# ---- text


def escape_surrogates(text: str) -> str:
    r"""Return text that UTF-8 can hold, as an exact str: a lone surrogate becomes its escape, such as ``\udc80``."""
    text = text if type(text) is str else str.__str__(text)
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def ascii_text(text: str) -> str:
    """Return text in readable ASCII: letters by their names in Unicode (``λ`` is ``lambda``), others as ``_``."""
    if text.isascii():
        return text
    return "".join(each if each.isascii() else _in_ascii(each) for each in unicodedata.normalize("NFKC", text))


def _in_ascii(character: str) -> str:
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    if category[0] == "M" or category == "Lm":  # part of the letter before
        return ""
    if category[0] in "CPZ" or not name:
        return "_"
    word = name.replace("LAMDA", "LAMBDA").partition(" WITH ")[0].removesuffix(" SIGN").split()[-1]  # codespell:ignore
    word = f"u{word.rpartition('-')[2]}" if "-" in word else word  # CJK UNIFIED IDEOGRAPH-640D
    return word.capitalize() if character.isupper() else word.lower()


def checked_unit(unit: object) -> str:
    """Return a unit in ASCII, of at most 63 characters, as each exporter can send it: ``"µs"`` becomes ``"us"``."""
    text = checked_text("unit", unit)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        for letters, code in _UNITS.items():
            text = text.replace(letters, code)
    text = re.sub(_NOT_IN_UNITS, "_", ascii_text(text).strip())[:_LONGEST_UNIT]
    return text if text.count("{") <= text.count("}") else text[: _LONGEST_UNIT - 1] + "}"


def checked_text(what: str, value: object) -> str:
    """Return a str or bytes as an exact str; bytes are decoded, as in torch. ``what`` names it in the TypeError."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {type(value).__qualname__}: {value!r:.80}")
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"{what} must be text that UTF-8 can hold, got {value!r:.80}") from error
    return text


def text_of(key: object) -> str:
    """Return a key of a mapping as text that UTF-8 can hold; the empty text if its class raises."""
    try:
        return escape_surrogates(key if isinstance(key, str) else str(key))
    except Exception:
        pass_on()
        return ""


# ---- attributes


@lru_cache(1000)  # asked for each attribute of each item that is sent
def attribute_name(name: str) -> str:
    """Return an attribute's name with a letter or digit in ASCII: Prometheus' receiver crashes at another one."""
    if _ASCII_ALNUM(name):
        return name
    found = ascii_text(name)
    return found if _ASCII_ALNUM(found) else "".join(f"u{ord(each):x}" for each in name)


def typed_items(attributes: Mapping[str, Any]) -> Hashable:
    """Return a key that identifies attributes in any order: True, 1 and 1.0 differ in it, and NaN equals NaN."""
    return frozenset(
        (name, type(value), value if value == value else None)  # noqa: PLR0124  NaN differs from itself
        for name, value in attributes.items()
    )


def checked_attributes(attributes: object, what: str = "attributes") -> Mapping[str, AttributeValue]:
    """Return a read-only copy; raise TypeError or ValueError for what cannot be sent. ``what`` names the argument."""
    if attributes is None:
        return _NO_ATTRIBUTES
    if not isinstance(attributes, Mapping):
        raise TypeError(f"{what} must be a mapping of names to values, got {type(attributes).__qualname__}")
    checked: dict[str, AttributeValue] = {}
    where = "" if what == "attributes" else f"{what}: "
    for key, value in attributes.items():
        name = checked_text(f"{where}attribute name", key)
        if not name:
            raise ValueError(f"{where}attribute names must not be empty: Prometheus rejects the whole request")
        checked[name] = checked_value(f"{where}attribute {name!r}", value)
    return MappingProxyType(checked) if checked else _NO_ATTRIBUTES


def checked_value(what: str, value: object) -> AttributeValue:
    """Return an attribute's value as an exact str, int, float or bool; NumPy scalars and bytes are converted.

    Another type, and text that UTF-8 cannot hold, is a TypeError, an int beyond 64 bits a ValueError.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        if not fits_int64(number):
            raise ValueError(f"{what}: an int must fit in 64 bits, got {number}; send it as a str")
        return number
    if isinstance(value, (str, bytes)):
        return checked_text(what, value)
    generic = getattr(sys.modules.get("numpy"), "generic", None)  # None while another thread imports it
    if generic is not None and isinstance(value, generic) and (kind := _NUMPY_KINDS.get(value.dtype.kind)):
        return checked_value(what, kind(value))
    raise TypeError(f"{what}: a value must be a str, int, float or bool, got {type(value).__qualname__}")


def recordable(values: Mapping[Any, Any], left_out: Callable[[object, object], object]) -> dict[str, AttributeValue]:
    """Return the values that each exporter can send, by the text of their keys. Never raises for a key or a value.

    ``left_out`` is called with key and value of each item that cannot be sent.
    """
    if (copy := plain_copy(values)) is not None:
        return copy
    found: dict[str, AttributeValue] = {}
    for key, value in items_of(values, left_out):
        name = text_of(key)
        try:
            sent = escape_surrogates(value) if isinstance(value, str) else checked_value(name, value)
        except Exception:  # of another type, or raised by its class
            pass_on()
            name = ""
        if name:
            found[name] = sent
        else:
            left_out(key, value)
    return found


def plain_copy(values: object) -> dict[str, AttributeValue] | None:
    """Return a copy of a dict in which nothing has to be checked or converted, as usual; else None."""
    if type(values) is not dict:
        return None
    copy = values.copy()  # another thread may change the dict
    for key, value in copy.items():
        kind = type(value)
        if type(key) is not str or not key or not key.isascii():
            return None
        if kind is str:
            if not value.isascii():
                return None
        elif kind is not float and kind is not bool and not (kind is int and INT64_MIN <= value <= INT64_MAX):
            return None
    return copy


def items_of(values: Mapping[Any, Any], left_out: Callable[[object, object], object]) -> Collection[tuple[Any, Any]]:
    """Return the items of a mapping; if they cannot be read, call ``left_out`` with no name and the mapping."""
    with ignored:
        return values.items() if type(values) is dict else dict(values.items()).items()
    left_out("", values)
    return ()
