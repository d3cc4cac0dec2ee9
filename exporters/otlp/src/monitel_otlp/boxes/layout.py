"""Layout of a black box: the names of its files, and the checked blocks in which they hold plain values."""

from __future__ import annotations

import marshal
import struct
import zlib
from typing import TYPE_CHECKING, Any

from monitel_otlp.boxes.plain import MARSHAL, decode

if TYPE_CHECKING:
    from monitel_otlp.spool.folder import Folder

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
