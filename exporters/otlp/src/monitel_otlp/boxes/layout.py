"""Layout of a black box: the names of its files, and the checked blocks in which they hold plain values."""

from __future__ import annotations

import marshal
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitel_otlp.spool.folder import Folder

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


#: The version of the layout. A collector leaves a box of a newer version alone.
VERSION = 1

HEADER = "header"
LOCK = "lock"
CUTS = ("cut-a", "cut-b")
JOURNALS = ("events-a", "events-b")
REQUEST = "request-"  # followed by the key of the request and its signal
CONTEXT = "context"
STACKS = "stacks"  # of a crash
STACKS_WANTED, STACKS_NOW = "stacks-wanted", "stacks-now"  # of a process that runs

#: The suffixes of the name of a box whose spool is complete, and of a damaged box, which nobody reads again.
COLLECTED, CORRUPT = ".collected", ".corrupt"

_MAGIC = b"mtbox\x00\x00\x01"
_FIELDS = struct.Struct("<8sII")  # magic, bytes and CRC-32 of the content
#: The most bytes of a file, except the header: the writer leaves out what does not fit, and a reader reads no more.
LARGEST_FILE = 16 << 20
LARGEST_HEADER = 1 << 20  #: The most bytes of the header.


class BoxError(Exception):
    """Raised for a box that cannot be read. The message names the file and the reason."""


class NewerBoxError(BoxError):
    """Raised for a box of a newer version."""


def pack(value: Any) -> bytes:
    """Return plain values as one block with its length and checksum.

    Raises:
        ValueError: The value contains other objects than plain values.
    """
    content = marshal.dumps(value, MARSHAL)
    return _FIELDS.pack(_MAGIC, len(content), zlib.crc32(content)) + content


def unpack(block: bytes, name: str) -> Any:
    """Return the plain values of a block. The checksum is compared before anything is decoded.

    Args:
        block: The content of the file. It may be longer than the block.
        name: The file, for the message.

    Raises:
        BoxError: The block is incomplete or damaged.
    """
    if len(block) < _FIELDS.size:
        raise BoxError(f"{name} ends after {len(block)} bytes")
    magic, length, checksum = _FIELDS.unpack_from(block)
    if magic != _MAGIC:
        newer = magic.startswith(_MAGIC[:5])
        raise (NewerBoxError if newer else BoxError)(f"{name} is not part of a black box of a known version")
    content = block[_FIELDS.size : _FIELDS.size + length]
    if len(content) < length or zlib.crc32(content) != checksum:
        raise BoxError(f"{name} is damaged")
    try:
        return decode(content)
    except ValueError as error:
        raise BoxError(f"{name} cannot be decoded: {error}") from None


def read_file(folder: Folder, name: str) -> bytes:
    """Return the content of a file of a box.

    Raises:
        BoxError: The file is larger than any that a box has.
        OSError: It cannot be read.
    """
    largest = LARGEST_HEADER if name == HEADER else LARGEST_FILE
    size = folder.status(name).st_size
    content = b"" if size > largest else folder.read(name, largest + 1)  # it may grow meanwhile
    if size > largest or len(content) > largest:
        raise BoxError(f"{name} is damaged: it has more than {largest:,} bytes")
    return content
