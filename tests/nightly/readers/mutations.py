"""Mutations of files that keep their structure: other plain values, and other records, with the right checksums.

A mutation of bytes alone never comes further than a checksum.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
import zlib
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.nightly.readers.targets import pack_archive, unpack_archive

from monitel_otlp.black_box.event_journal import _GENERATION, _record, read_journal
from monitel_otlp.boxes.layout import HEADER, JOURNALS, pack, unpack
from monitel_otlp.spool import raw_segment, request_segment
from monitel_otlp.spool.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    MutateBytes = Callable[[bytes], bytes]

_KEPT = "spool_dir"  # a field of the header of a box: collectors write to any folder that it names
_NUMBERS = (0, 1, -1, 7, 159, 160, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30)
_OTHERS: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    "\udc80",
    "\x1b[2J\n",
    b"",
    b"\xff",
    0.0,
    -1.5,
    float("nan"),
    float("inf"),
    (),
    [],
    {},
    {"x": 1},
    ("x", 1),
)


def mutate_file(content: bytes, rng: Random, mutate: MutateBytes) -> bytes:
    """Return a file with another value, in a half of the cases; otherwise with other bytes. Never raises."""
    changed = _or_none(lambda: _with_other_values(content, rng)) if rng.random() < 0.5 else None
    return mutate(content) if changed is None else changed


def mutate_archive(content: bytes, rng: Random, mutate: MutateBytes) -> bytes:
    """Return an archive in which one file has changed, is missing, or has the content of another one. Never raises."""
    files = unpack_archive(content)
    if not files:
        return mutate(content)
    name = rng.choice([*files])
    kind = rng.random()
    if kind < 0.05:
        del files[name]
    elif kind < 0.1:
        files[name] = files[rng.choice([*files])]
    elif name in JOURNALS and kind < 0.5:
        changed = _or_none(lambda: _other_journal(files[name], rng))
        files[name] = mutate(files[name]) if changed is None else changed
    else:
        files[name] = mutate_file(files[name], rng, mutate)
    return pack_archive(files)


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """Cut, flip, insert or repeat bytes."""
    begin = rng.randrange(len(content) + 1)
    end = min(len(content), begin + rng.randrange(1, 40))
    noise = rng.randbytes(rng.randrange(9))
    kinds = (content[:begin], content[:begin] + content[end:], content[:begin] + noise + content[end:],
             content[:end] + content[begin:], content[:begin] + noise + content[begin:])  # fmt: skip
    return rng.choice(kinds)


def other_value(value: Any, rng: Random) -> Any:
    """Return a plain value that differs in one place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([each for each in value if each != _KEPT] or [""])
        return {**value, key: other_value(value.get(key), rng)}
    if isinstance(value, list | tuple) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        changed = [other_value(value[place], rng)] if rng.random() < 0.9 else rng.choice([[], [value[place]] * 2])
        return type(value)([*value[:place], *changed, *value[place + 1 :]])
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice([value + 1, value - 1, -value, value * 1000, *_NUMBERS])
    if isinstance(value, float) and rng.random() < 0.6:
        return rng.choice([-value, value * 1e300, 0.0, float("nan"), float("-inf")])
    if isinstance(value, bytes) and rng.random() < 0.6:
        return mutate_bytes(value, rng)
    return rng.choice([*_NUMBERS, *_OTHERS])


def _or_none(change: Callable[[], bytes]) -> bytes | None:
    """Return what a function returns; None if earlier mutations have damaged its input, in whatever way."""
    try:
        return change()
    except Exception:
        return None


def _with_other_values(content: bytes, rng: Random) -> bytes:
    if content.startswith(raw_segment.MAGIC):
        return _other_raw_segment(content, rng)
    if content.startswith(request_segment.MAGIC):
        return _other_requests(content, rng)
    if content.startswith(b"{"):
        lines = content.split(b"\n")
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(other_value(json.loads(lines[place]), rng), default=str).encode()
        return b"\n".join(lines)
    return pack(other_value(unpack(content, HEADER), rng))


def _other_raw_segment(content: bytes, rng: Random) -> bytes:
    blocks, offset = [], len(raw_segment.MAGIC)
    while offset < len(content):
        length, items, checksum, _ = struct.unpack_from("<IIII", content, offset)
        offset += 16 + length
        block = content[offset - length : offset]
        if zlib.crc32(block) != checksum:
            raise ValueError("an earlier mutation has damaged it")  # marshal is unsafe on it
        blocks.append((marshal.loads(block), items))
    place = rng.randrange(len(blocks))
    blocks[place] = other_value(blocks[place][0], rng), blocks[place][1]
    return raw_segment.MAGIC + b"".join(
        raw_segment.pack_block(marshal.dumps(value, 4), items) for value, items in blocks
    )


def _other_requests(content: bytes, rng: Random) -> bytes:
    descriptor = os.memfd_create("requests")
    os.write(descriptor, content)
    requests = []
    with closing(request_segment.RecordReader(descriptor, "logs", Position(), lambda *_: None)) as reader:
        while (request := reader.read(len(content))) is not None:
            requests.append(request)
    if not requests:
        raise ValueError
    place = rng.randrange(len(requests))
    kept = requests[place]
    fields: dict[str, Any] = {
        "items": rng.randrange(1 << 32),
        "created_ns": rng.randrange(1 << 64),
        "synthetic": rng.randrange(1 << 32),
        "weights": rng.randbytes(rng.randrange(12)),
        "body": mutate_bytes(kept.body, rng),
    }
    name = rng.choice([*fields])
    other: list[Any] = rng.choice([[], [kept, kept], *[[replace(kept, **{name: fields[name]})]] * 6])
    return request_segment.MAGIC + b"".join(
        map(request_segment.pack, [*requests[:place], *other, *requests[place + 1 :]])
    )


def _other_journal(content: bytes, rng: Random) -> bytes:
    events = [*read_journal(content)]
    if not events:
        return content
    place = rng.randrange(len(events))
    number, plain = events[place]
    events[place] = rng.choice([number, (number + 1) % (1 << 64), 0, (1 << 64) - 1]), other_value(plain, rng)
    generation = rng.choice([0, 1, 2, (1 << 64) - 1])
    records = (_record(generation, number, marshal.dumps(plain, 4)) for number, plain in events)
    return _GENERATION.pack(generation) + b"".join(records)
