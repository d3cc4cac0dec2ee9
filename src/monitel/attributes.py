"""Names, units and attributes that the application chooses: the checks, and the forms that each exporter can send.

An attribute value is a str that UTF-8 can hold, an int of 64 bits, a float or a bool.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    AttributeValue = str | bool | int | float

__all__ = ["INT64_MAX", "INT64_MIN", "ascii_text", "escape_surrogates", "fits_int64", "recordable", "typed_items"]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_PLAIN = (str, float, int, bool)
_NO_ATTRIBUTES: Mapping[str, AttributeValue] = MappingProxyType({})
_LONGEST_UNIT = 63  # characters, of OpenTelemetry
_UNITS = {"°C": "Cel", "°F": "[degF]", "°": "deg", "μ": "u", "Ω": "Ohm", "Å": "Ao", "·": ".", "⋅": "."}
_NOT_IN_UNITS = re.compile(r"[^!-~]+")


def fits_int64(number: int) -> bool:
    """Return True if an int fits in 64 bits, with its sign."""
    return INT64_MIN <= number <= INT64_MAX


def escape_surrogates(text: str) -> str:
    r"""Return text that UTF-8 can hold, as an exact str: a lone surrogate becomes its escape.

    Example:
        >>> from monitel.attributes import escape_surrogates
        >>> escape_surrogates("caf\xe9 \udc80")
        'café \\udc80'
    """
    if text.isascii():
        return text if type(text) is str else str.__str__(text)
    return text.encode(errors="backslashreplace").decode()


def ascii_text(text: str) -> str:
    """Return text in readable ASCII: letters by their names in Unicode, other characters as ``_``.

    Example:
        >>> from monitel.attributes import ascii_text
        >>> [ascii_text(text) for text in ("Größe", "λ", "損失", "손실", "train.loss")]
        ['Grose', 'lambda', 'u640du5931', 'sonsil', 'train.loss']
    """
    if text.isascii():
        return text
    import unicodedata  # loaded on demand

    return "".join(
        each
        if each.isascii()
        else _in_ascii(unicodedata.category(each), unicodedata.name(each, ""), upper=each.isupper())
        for each in unicodedata.normalize("NFKC", text)
    )


def _in_ascii(category: str, name: str, *, upper: bool) -> str:
    if category[0] == "M" or category == "Lm":  # part of the letter before
        return ""
    if category[0] in "CPZ" or not name:
        return "_"
    word = name.replace("LAMDA", "LAMBDA").partition(" WITH ")[0].removesuffix(" SIGN").split()[-1]  # codespell:ignore
    word = f"u{word.rpartition('-')[2]}" if "-" in word else word  # CJK UNIFIED IDEOGRAPH-640D
    return word.capitalize() if upper else word.lower()


def checked_unit(unit: object) -> str:
    """Return a unit in ASCII, of at most 63 characters, as each exporter can send it: ``"µs"`` becomes ``"us"``.

    Raises:
        TypeError: Not a str.
    """
    text = checked_text("unit", unit)
    if not text.isascii():
        import unicodedata

        text = unicodedata.normalize("NFKC", text)
        for letters, code in _UNITS.items():
            text = text.replace(letters, code)
    text = _NOT_IN_UNITS.sub("_", ascii_text(text).strip())[:_LONGEST_UNIT]
    return text if text.count("{") <= text.count("}") else text[: _LONGEST_UNIT - 1] + "}"


def recordable(values: Mapping[Any, Any], left_out: Callable[[object, object], object]) -> dict[str, AttributeValue]:
    r"""Return the values that each exporter can send, with the text of each key.

    A lone surrogate becomes its escape. The function never raises for a key or a value.

    Args:
        values: Values of any type.
        left_out: Called with key and value of each item that cannot be sent.

    Example:
        >>> from monitel.attributes import recordable
        >>> recordable({"path": "a\udc80", 1: 0.5, "shape": [2, 3]}, lambda key, value: print(key, value))
        shape [2, 3]
        {'path': 'a\\udc80', '1': 0.5}
    """
    if (copy := plain_copy(values)) is not None:
        return copy
    found: dict[str, AttributeValue] = {}
    for key, value in items_of(values, left_out):
        name = text_of(key)
        try:
            sent = escape_surrogates(value) if isinstance(value, str) else checked_value(name, value)
        except Exception:  # of another type, or raised by its class
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
    """Return the items of a mapping; if its class raises, call ``left_out`` with no name and the mapping."""
    if type(values) is dict:
        return values.items()
    try:
        return [*values.items()]
    except Exception:
        left_out("", values)
        return ()


def text_of(key: object) -> str:
    """Return a key of a mapping as text that UTF-8 can hold; the empty text if its class raises."""
    try:
        return escape_surrogates(key if isinstance(key, str) else str(key))
    except Exception:
        return ""


def typed_items(attributes: Mapping[str, Any]) -> Hashable:
    """Return a key that identifies attributes in any order: True, 1 and 1.0 differ in it, and NaN equals NaN."""
    return frozenset(
        (name, type(value), value if value == value else None)  # noqa: PLR0124  NaN differs from itself
        for name, value in attributes.items()
    )


def checked_attributes(attributes: object, what: str = "attributes") -> Mapping[str, AttributeValue]:
    """Return a read-only copy of ``attributes``, or of an argument with another name.

    Raises:
        TypeError: Not a mapping, a name that is not a str, or a value of another type than those of attributes.
        ValueError: An empty name, or an int beyond 64 bits.
    """
    if attributes is None:
        return _NO_ATTRIBUTES
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise TypeError(f"{what} must be a mapping of names to values, got {type(attributes).__qualname__}")
    checked: dict[str, AttributeValue] = {}
    where = "" if what == "attributes" else f"{what}: "
    for key, value in attributes.items():
        name = checked_text(f"{where}attribute name", key)
        if not name:
            raise ValueError(f"{where}attribute names must not be empty: Prometheus rejects the whole request")
        checked[name] = checked_value(f"{where}attribute {name!r}", value)
    return MappingProxyType(checked) if checked else _NO_ATTRIBUTES


def checked_text(what: str, value: object) -> str:
    """Return a str or bytes as an exact str; bytes are decoded, as in torch.

    Args:
        what: The name of the argument, for error messages.
        value: The argument.

    Raises:
        TypeError: Another type, or a str that UTF-8 cannot hold.
        UnicodeDecodeError: Bytes that are not UTF-8.
    """
    if type(value) is str:
        decoded = value
    elif isinstance(value, (bytes, bytearray)):
        return value.decode()
    elif isinstance(value, str):
        decoded = str.__str__(value)
    else:
        raise TypeError(f"{what} must be a str, got {type(value).__qualname__}: {value!r:.80}")
    if not decoded.isascii():
        try:
            decoded.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"{what} must be text that UTF-8 can hold, got {value!r:.80}") from error
    return decoded


def checked_value(what: str, value: object) -> AttributeValue:
    """Return an attribute's value as an exact str, int, float or bool; NumPy scalars and bytes are converted.

    Args:
        what: The name of the attribute, for error messages.
        value: The value.

    Raises:
        TypeError: A value of another type, or a str that UTF-8 cannot hold.
        ValueError: An int beyond 64 bits.
    """
    value = _without_numpy(value)
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
    raise TypeError(f"{what}: a value must be a str, int, float or bool, got {type(value).__qualname__}")


def _without_numpy(value: object) -> object:
    """Return a NumPy number as a Python number, and any other value unchanged."""
    if type(value) in _PLAIN:
        return value
    numpy = sys.modules.get("numpy")  # a program that passes NumPy scalars has imported it
    generic = getattr(numpy, "generic", None)  # None while another thread imports it
    if numpy is None or generic is None or not isinstance(value, generic):
        return value
    if isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numpy.integer) and not isinstance(value, numpy.timedelta64):
        return int(value)
    if isinstance(value, numpy.floating):
        return float(value)
    return value
