"""Raw segments: items that were not encoded in time, written as plain values and decoded when they are read."""

from __future__ import annotations

import marshal
import struct
import tempfile
import time
from contextlib import closing
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checks import limit
from tests.support.spools import drain, make_request, the_segment

import monitel_otlp.spool.spool
from monitel_otlp.messages.request import FrozenRequest
from monitel_otlp.spool import segment_writer
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


def block_offsets(content: bytes) -> list[int]:
    """Return the offsets of the blocks of items, and the end of the last block."""
    offsets = [MAGIC_BYTES]
    while offsets[-1] < len(content):
        (length,) = struct.unpack_from("<I", content, offsets[-1])
        offsets.append(offsets[-1] + BLOCK_HEADER_BYTES + length)
    return offsets[1:]


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


@pytest.mark.parametrize("removed", range(13))
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


def test_damaged_block_loses_only_its_items(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The block is not decoded, its items are counted as lost, and the next block is read."""
    folder = tmp_path / "spool"
    whole = write_raw(folder, 30)
    offsets = block_offsets(whole)
    for begin, end in pairwise(offsets):
        for position in (begin + BLOCK_HEADER_BYTES, end - 1):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            the_segment(folder).write_bytes(damaged)
            caplog.clear()
            spool = Spool(folder, decoders=DECODERS)
            spool.load()
            items = sum(request.items for request in spool.requests())
            spool.oldest("logs")
            spool.abandon()
            assert 30 - items == (2 if end == len(whole) else 7)
            assert 1 == len(caplog.records)
            assert f"the block at byte {begin} is damaged" in caplog.text


@given(st.data())
def test_garbage_in_a_raw_segment_is_counted(data: st.DataObject) -> None:
    """With any bytes at any offset nothing is raised, and each written item is read or counted as lost."""
    with tempfile.TemporaryDirectory() as root, closing(Spool(Path(root) / "spool", decoders=DECODERS)) as spool:
        spool.append(make_request(1, "logs"))
        spool.append_raw("logs", HEADER, blocks_of(range(30)))
        spool.append(make_request(2, "logs"))
        (path,) = spool.folder.glob("*.raw")
        content = bytearray(path.read_bytes())
        begin = data.draw(st.integers(0, len(content)))
        content[begin : begin + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
        path.write_bytes(content)
        found = drain(spool, "logs")
        assert (make_request(1, "logs"), make_request(2, "logs")) == (found[0], found[-1])
        assert 32 == sum(request.items for request in found) + spool.take_lost("logs").get("disk", 0)
        assert 0 == spool.items("logs")


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


@pytest.mark.parametrize("header", [("other", 1), (), None, 5, ("numbers", 2)], ids=repr)
def test_segment_without_a_decoder_is_kept(tmp_path: Path, header: object) -> None:
    """A newer version may read the segment; for this process its items count as lost."""
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        spool.append_raw("logs", header, blocks_of(range(5)))
        spool.append(make_request(1, "logs"))
        assert [make_request(1, "logs")] == drain(spool, "logs")
        assert {"disk": 5} == spool.take_lost("logs")
    assert the_segment(tmp_path / "spool").suffix == ".raw"


def test_default_decoders_are_imported_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoders are imported when the first raw segment is read."""
    calls = []

    def decoders() -> dict[str, type[Running]]:
        calls.append(1)
        return DECODERS

    monkeypatch.setattr(monitel_otlp.spool.spool, "_default_decoders", decoders)
    with closing(Spool(tmp_path / "spool")) as spool:
        spool.append_raw("logs", HEADER, blocks_of(range(5)))
        assert [] == calls
        assert expected(5) == drain(spool, "logs")


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


def test_size_of_blocks_is_limited() -> None:
    """A block has at most 256 items, and at most 16 MiB unless a single item is larger."""
    assert [256, 256, 88] == [count for _, count in encode_blocks(list(range(600)))]
    large = encode_blocks(["x" * (5 << 20)] * 6 + ["y" * (20 << 20)])
    assert 7 == sum(count for _, count in large)
    assert all(len(content) <= 16 << 20 for content, count in large if count > 1)


def test_empty_raw_segment_leaves_nothing(tmp_path: Path) -> None:
    """Neither a file nor a folder remains."""
    with closing(Spool(tmp_path / "spool", decoders=DECODERS)) as spool:
        assert 0 == spool.append_raw("logs", HEADER, [])
        assert [] == [*spool.folder.glob("*.raw")]
    assert not (tmp_path / "spool").exists()


def test_header_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The write raises ValueError, because a header with such values is a bug of this package."""
    with closing(Spool(tmp_path / "spool")) as spool:
        with pytest.raises(ValueError, match="unmarshallable"):
            spool.append_raw("logs", object(), blocks_of(range(3)))
        spool.append(make_request(1, "logs"))
        assert ["logs-000001.spool"] == [path.name for path in spool.folder.glob("logs*")]


def test_blocks_beyond_the_size_limit_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older segments are dropped first; the result is the number of written items."""
    monkeypatch.setattr(segment_writer, "_WRITE_BYTES", 2000)
    with closing(Spool(tmp_path / "spool", 10_000, decoders=DECODERS)) as spool:
        spool.append(make_request(1, "logs", b"x" * 1000, items=5))
        written = spool.append_raw("logs", HEADER, blocks_of(range(10_000)))
        assert 500 < written < 10_000
        assert ({"spool_full": 5}, written) == (spool.take_lost("logs"), spool.items("logs"))
        assert 6000 < spool.size_bytes <= 10_000
        assert written == sum(request.items for request in drain(spool, "logs"))


class Counting(Running):
    """A decoder that counts the items of all instances."""

    seen_by_all = 0

    def decode(self, items: list[Any]) -> list[FrozenRequest]:
        """Count the items."""
        Counting.seen_by_all += len(items)
        return [FrozenRequest("logs", b"", len(items), 0)]


def test_blocks_are_decoded_one_by_one(tmp_path: Path) -> None:
    """A large segment is never completely in memory."""
    with closing(Spool(tmp_path / "spool", decoders={"numbers": Counting})) as spool:
        spool.append_raw("logs", HEADER, blocks_of(range(256 * 20), 256))
        for number in range(20):
            assert 256 == getattr(spool.oldest("logs"), "items", None)
            assert 256 * (number + 1) == Counting.seen_by_all
            spool.remove_oldest("logs")


@pytest.mark.timed
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_time_to_write_a_hundred_thousand_events(tmp_path: Path, busy: bool) -> None:
    """Writing takes 0.05 s on an idle machine, and must fit into an exit even with a busy thread."""
    events = [
        ("checkpoint", 1_700_000_000_000_000_000 + number, {"epoch": number, "loss": 0.25, "phase": "train"}, number)
        for number in range(100_000)
    ]
    over = Event()

    def spin() -> None:
        while not over.is_set():
            pass

    if busy:
        Thread(target=spin, daemon=True).start()
    try:
        with closing(Spool(tmp_path / "spool")) as spool:
            began = time.process_time() if not busy else time.perf_counter()
            blocks = (block for begin in range(0, 100_000, 256) for block in encode_blocks(events[begin : begin + 256]))
            assert 100_000 == spool.append_raw("logs", HEADER, blocks)
            took = (time.process_time() if not busy else time.perf_counter()) - began
    finally:
        over.set()
    assert took < limit(1.5 if busy else 0.3)
