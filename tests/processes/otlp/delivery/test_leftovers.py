"""Spools of earlier processes, which the next pipeline with the same endpoints delivers."""

from pathlib import Path

import pytest
from tests.processes.ports import reserved_port
from tests.support.inbox import DEADLINE, Answer, Request
from tests.support.pipelines import Start
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import cat, folders, spooled

import monitel

LEFT = """\
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=3600.0)
loss = Stat("loss", [COUNT], 3600.0)
for number in range(int(sys.argv[2])):
    monitel.emit("left", number=number)
loss.add(1)
"""


def numbers(receiver: Receiver) -> list[int]:
    return [record.attributes["number"] for record in receiver.records("left")]


def is_left(request: Request) -> bool:
    return request.signal == "logs" and b"left" in request.body


def test_leftovers_wait_until_the_backend_accepts_a_request(train: Run, start: Start, tmp_path: Path) -> None:
    """No leftovers are sent to a backend that is away, or that refuses the requests of this pipeline."""
    with reserved_port() as port:
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
    *, train: Run, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its items stay in each folder; the other signals of all folders are delivered."""
    with reserved_port() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"http://127.0.0.1:{port}/v1/logs")
        for _ in range(2):
            train(LEFT.replace("endpoint=sys.argv[1], ", ""), "", 5)
        with Receiver(port) as receiver:
            pipeline = start(endpoint=None, spool_dir=tmp_path / "spool")
            monitel.emit("first")
            assert pipeline.force_flush(DEADLINE)
            receiver.wait_until(lambda: 10 == len(numbers(receiver)))
            pipeline.shutdown()
        left = cat(tmp_path / "spool")
        assert {"metrics"} == {signal for signal, _ in left.requests}


def test_link_among_the_leftovers_is_not_followed(train: Run, start: Start, tmp_path: Path) -> None:
    """A symbolic link to a spool elsewhere delivers nothing."""
    with reserved_port() as port:
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
