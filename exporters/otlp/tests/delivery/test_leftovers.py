"""What an earlier process has left is delivered by the next pipeline with the same endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import monitel

from .inbox import DEADLINE
from .receiver import Receiver
from .spools import folders, spooled

if TYPE_CHECKING:
    from .conftest import Run, Start

LEFT = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
loss = Stat("loss", [COUNT], 3600.0)
for number in range(int(sys.argv[2])):
    monitel.emit("left", number=number)
loss.add(1)
"""


def numbers(receiver: Receiver) -> list[int]:
    """Return the numbers of the events that the earlier process has left."""
    return [record.attributes["number"] for record in receiver.records("left")]


def refused_port() -> int:
    """Return a port that refuses connections, and that a backend may take later."""
    with Receiver() as gone:
        return gone.port


def test_next_pipeline_delivers_what_an_earlier_one_left(train: Run, start: Start, tmp_path: Path) -> None:
    """Encoded requests and raw items arrive once, with their own resource, and outside the account."""
    port = refused_port()
    train(LEFT, f"http://127.0.0.1:{port}", 25_000)
    assert list((tmp_path / "spool").rglob("*.raw"))
    with Receiver(port) as receiver:
        pipeline = start(endpoint=receiver.url, spool_dir=tmp_path / "spool")
        monitel.emit("first")
        assert pipeline.force_flush(DEADLINE)
        receiver.wait_until(lambda: len(numbers(receiver)) == 25_000 and receiver.values("loss.count"), 60)
        assert list(range(25_000)) == sorted(numbers(receiver))
        assert [1] == receiver.values("loss.count")
        assert 1 == pipeline.account()["logs"].recorded
        pipeline.shutdown()
    left = {record.resource["service.instance.id"] for record in receiver.records("left")}
    assert 1 == len(left)
    assert not left & {record.resource["service.instance.id"] for record in receiver.records("first")}


def test_leftovers_of_another_endpoint_stay(train: Run, receiver: Receiver, start: Start, tmp_path: Path) -> None:
    """Telemetry goes only where it was meant to go; offline runs stay as well."""
    train(LEFT, "http://127.0.0.1:9", 10)
    train(LEFT.replace("endpoint=sys.argv[1], ", ""), "", 5)
    pipeline = start(spool_dir=tmp_path / "spool")
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    pipeline.shutdown()
    assert [] == numbers(receiver)
    assert 15 == len(spooled(tmp_path / "spool")[1])


def test_leftovers_wait_until_the_backend_accepts_something(train: Run, start: Start, tmp_path: Path) -> None:
    """A backend that is away is not pressed with old data."""
    port = refused_port()
    train(LEFT, f"http://127.0.0.1:{port}", 10)
    pipeline = start(endpoint=f"http://127.0.0.1:{port}", spool_dir=tmp_path / "spool")
    monitel.emit("first")
    assert not pipeline.force_flush(0.2)
    pipeline.shutdown()
    assert 10 == spooled(tmp_path / "spool")[1].count("left")


def test_a_link_among_the_leftovers_is_not_followed(train: Run, start: Start, tmp_path: Path) -> None:
    """A planted link to a spool elsewhere delivers nothing."""
    port = refused_port()
    train(LEFT, f"http://127.0.0.1:{port}", 10)
    (folder,) = folders(tmp_path / "spool")
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    Path(folder).symlink_to(moved)
    with Receiver(port) as receiver:
        pipeline = start(endpoint=receiver.url, spool_dir=tmp_path / "spool")
        monitel.emit("first")
        assert pipeline.force_flush(DEADLINE)
        pipeline.shutdown()
        assert [] == numbers(receiver)
    assert list(moved.iterdir())
