"""Raw segments: items that were not encoded in time, written as plain values and decoded when they are read."""

from __future__ import annotations

import marshal
import tempfile
from contextlib import closing
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spools import drain, make_request, the_segment

from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool.raw_segment import encode_blocks
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER = ("numbers", 1, b"resource")
MAGIC_BYTES, BLOCK_HEADER_BYTES = 8, 16


class Running:
    """A decoder with state: each request has three items and the number of items so far."""

    def __init__(self, header: Any) -> None:
        assert header == HEADER
        self.seen = 0

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Return a request for every three items."""
        found = []
        for begin in range(0, len(items), 3):
            part = items[begin : begin + 3]
            self.seen += len(part)
            found.append(FrozenRequest("logs", f"{self.seen} {part}".encode(), len(part), self.seen))
        return found


DECODERS = {"numbers": Running}


def blocks_of(items: Iterable[Any], size: int = 7) -> list[tuple[bytes, int]]:
    """Encode items in small blocks."""
    items = list(items)
    return [block for begin in range(0, len(items), size) for block in encode_blocks(items[begin : begin + size])]


def expected(count: int, size: int = 7) -> list[FrozenRequest]:
    """Return the requests that a decoder makes from the numbers below a count."""
    decoder = Running(HEADER)
    return [
        request
        for begin in range(0, count, size)
        for request in decoder.decode(list(range(begin, min(begin + size, count))))
    ]


def write_raw(folder: Path, count: int) -> bytes:
    """Write the numbers below a count, close the spool as a process does at its end, and return the file's content."""
    with closing(Spool(folder)) as spool:
        assert count == spool.append_raw("logs", HEADER, blocks_of(range(count)))
        assert count == spool.items("logs")
    return the_segment(folder).read_bytes()


@given(st.lists(st.sampled_from(["request", "raw", "restart", "remove"]), max_size=12), st.integers(1, 25))
def test_requests_and_raw_segments_keep_their_order(steps: list[str], count: int) -> None:
    """Requests of both kinds are read once, in the order of writing, across restarts; items add up."""
    with tempfile.TemporaryDirectory() as root:
        waiting: list[FrozenRequest] = []
        folder = Path(root) / "spool"
        spool = Spool(folder, decoders=DECODERS)
        for number, step in enumerate(steps):
            if step == "request":
                spool.append(make_request(number, "logs"))
                waiting.append(make_request(number, "logs"))
            elif step == "raw":
                assert count == spool.append_raw("logs", HEADER, blocks_of(range(count)))
                waiting += expected(count)
            elif step == "restart":
                spool.close()
                spool = Spool(folder, decoders=DECODERS)
                if folder.exists():
                    spool.load()
            elif waiting:
                assert waiting.pop(0) == spool.oldest("logs")
                assert spool.remove_oldest("logs")
            assert (waiting[0] if waiting else None) == spool.oldest("logs")
            assert waiting == list(spool.requests())
        assert waiting == list(Spool(folder, decoders=DECODERS).peek())
        assert waiting == drain(spool, "logs")
        assert ({}, 0) == (spool.take_lost("logs"), spool.items("logs"))
        spool.close()
        assert not folder.exists()


@pytest.mark.parametrize("removed", [0, 1, 7])
def test_reading_resumes_inside_a_raw_segment(tmp_path: Path, removed: int) -> None:
    """The decoder reads the segment from its first block, so that its state is the same."""
    write_raw(tmp_path / "spool", 30)
    for last in (removed, len(expected(30))):
        with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
            spool.load()
            left = list(spool.requests())
            assert expected(30)[-len(left) :] == left
            while len(expected(30)) - len(left) < last:
                assert left.pop(0) == spool.oldest("logs")
                spool.remove_oldest("logs")
    assert not (tmp_path / "spool").exists()


def test_checksum_is_compared_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``marshal`` never receives damaged bytes."""
    folder = tmp_path / "spool"
    whole = write_raw(folder, 7)
    seen = []
    real = marshal.loads

    def loads(content: bytes) -> Any:
        seen.append(content)
        return real(content)

    monkeypatch.setattr(marshal, "loads", loads)
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    the_segment(folder).write_bytes(damaged)
    assert [] == list(Spool(folder, decoders=DECODERS).peek())
    assert [HEADER] == [real(each) for each in seen]


class Raising(Running):
    """A decoder that raises for the second block."""

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Raise for the second block."""
        if 7 in items:
            raise KeyError("no such series")
        return super().decode(items)


class Losing(Running):
    """A decoder that leaves out some items."""

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Leave out multiples of three."""
        return super().decode([item for item in items if item % 3])


@pytest.mark.parametrize(("decoder", "lost"), [(Raising, 7), (Losing, 10)])
def test_items_that_a_decoder_cannot_read_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decoder: type[Running], lost: int
) -> None:
    """A block whose decoder raises is lost, other blocks are read, and one line is logged."""
    with closing(Spool(tmp_path / "spool", decoders={"numbers": decoder})) as spool:
        spool.append_raw("logs", HEADER, blocks_of(range(30)))
        assert 30 - lost == sum(request.items for request in drain(spool, "logs"))
        assert ({"disk": lost}, 0) == (spool.take_lost("logs"), spool.items("logs"))
    assert 1 == len(caplog.records)


class Level(IntEnum):
    """An enum, as applications use in attributes."""

    HIGH = 3


@pytest.mark.parametrize(
    "odd",
    [Level.HIGH, MappingProxyType({}), type("Text", (str,), {})("x"), object(), lambda: None, Path()],
    ids=lambda odd: type(odd).__name__,
)
def test_only_the_item_that_cannot_be_written_is_lost(odd: Any) -> None:
    """Other items are written, and the numbers of items reflect the loss."""
    items = [("event", number, {"value": number}) for number in range(100)]
    for place in (0, 41, 99):
        given: list[Any] = list(items)
        given[place] = ("event", place, {"value": odd})
        blocks = encode_blocks(given)
        assert items[:place] + items[place + 1 :] == [each for content, _ in blocks for each in marshal.loads(content)]
        assert [len(marshal.loads(content)) for content, _ in blocks] == [count for _, count in blocks]
    assert [] == encode_blocks([odd])
    assert [] == encode_blocks([])
