"""Spools of earlier processes, which the next pipeline with the same endpoints delivers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.inbox import DEADLINE, Answer
from tests.support.producers import run_together
from tests.support.receiver import Receiver
from tests.support.spools import folders, spooled

import monitel
from monitel_otlp.config.black_box import BoxSettings
from monitel_otlp.delivery.leftovers import Leftovers
from monitel_otlp.spool.spool import Spool

if TYPE_CHECKING:
    import pytest
    from tests.support.inbox import Request
    from tests.support.pipelines import Start
    from tests.support.scripts import Run

LEFT = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
loss = Stat("loss", [COUNT], 3600.0)
for number in range(int(sys.argv[2])):
    monitel.emit("left", number=number)
loss.add(1)
"""


def numbers(receiver: Receiver) -> list[int]:
    """Return the numbers of the earlier process's events."""
    return [record.attributes["number"] for record in receiver.records("left")]


def is_left(request: Request) -> bool:
    """Return True if a request has events of the earlier process."""
    return request.signal == "logs" and b"left" in request.body


def closed_port() -> int:
    """Return a port that refuses connections until a backend is started on it."""
    with Receiver() as closed:
        return closed.port


def test_next_pipeline_delivers_leftovers(train: Run, start: Start, tmp_path: Path) -> None:
    """Encoded requests and raw items arrive once with the resource of their process, and are not in the account."""
    port = closed_port()
    train(LEFT, f"http://127.0.0.1:{port}", 25_000, env={"MONITEL_BLACK_BOX": "0"})  # which wakes the encoder early
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
    """Telemetry is sent only to the endpoint that it was recorded for; spools of offline runs stay as well."""
    train(LEFT, "http://127.0.0.1:9", 10)
    train(LEFT.replace("endpoint=sys.argv[1], ", ""), "", 5)
    pipeline = start(spool_dir=tmp_path / "spool")
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    pipeline.shutdown()
    assert [] == numbers(receiver)
    assert 15 == len(spooled(tmp_path / "spool")[1])


def test_leftovers_wait_until_the_backend_accepts_a_request(train: Run, start: Start, tmp_path: Path) -> None:
    """No leftovers are sent to a backend that is away, or that refuses the requests of this pipeline."""
    port = closed_port()
    train(LEFT, f"http://127.0.0.1:{port}", 10)
    with Receiver(port) as receiver:
        receiver.rule(lambda request: None if is_left(request) else Answer(503))
        pipeline = start(endpoint=f"http://127.0.0.1:{port}", spool_dir=tmp_path / "spool")
        monitel.emit("first")
        assert not pipeline.force_flush(0.5)
        pipeline.shutdown()
        assert not list(filter(is_left, receiver.requests))
    assert 10 == spooled(tmp_path / "spool")[1].count("left")


def test_signal_without_an_endpoint_does_not_stop_the_delivery_of_leftovers(
    train: Run, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its items stay in each folder; the other signals of all folders are delivered."""
    port = closed_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"http://127.0.0.1:{port}/v1/logs")
    for _ in range(2):
        train(LEFT.replace("endpoint=sys.argv[1], ", ""), "", 5)
    with Receiver(port) as receiver:
        pipeline = start(endpoint=None, spool_dir=tmp_path / "spool")
        monitel.emit("first")
        assert pipeline.force_flush(DEADLINE)
        receiver.wait_until(lambda: 10 == len(numbers(receiver)))
        pipeline.shutdown()
    left = [{request.signal for request in Spool(folder).peek()} for folder in folders(tmp_path / "spool")]
    assert [{"metrics"}] * 2 == left


def test_link_among_the_leftovers_is_not_followed(train: Run, start: Start, tmp_path: Path) -> None:
    """A symbolic link to a spool elsewhere delivers nothing."""
    port = closed_port()
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


def test_threads_that_start_it_together_start_one_thread(tmp_path: Path) -> None:
    """Each sender starts the delivery after its first request, possibly at the same moment."""
    made: list[int] = []

    def make_transports() -> dict[str, Any]:
        made.append(1)
        return {}

    for number in range(100):
        (tmp_path / "20260101-000000-1-mark").mkdir(exist_ok=True)
        leftovers = Leftovers(tmp_path / "own", "mark", make_transports, BoxSettings(enabled=False))
        run_together(*[leftovers.deliver] * 4)
        leftovers._thread.join(DEADLINE)
        assert number + 1 == len(made)
