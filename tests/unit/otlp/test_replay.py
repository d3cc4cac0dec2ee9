"""monitel replay: the age of the data, and requests that a backend cannot take."""

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from tests.support.inbox import Answer, Request, records_of
from tests.support.receiver import Receiver
from tests.support.spools import leave
from tests.unit.promises.program import Program

import monitel_otlp.export.sender
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.record import EVENT, NUMBERS


def test_refusal_for_the_age_of_data_has_advice(receiver: Receiver, program: Program, tmp_path: Path) -> None:
    """The requests are set aside; the message has the settings of backends, and the command that sends them again."""
    folder = leave(tmp_path / "runs", [("metrics", NUMBERS, [(1, 1, 0.5)])])
    receiver.rule(lambda _: Answer(400, body=b"out of bounds"))
    printed = program("replay", tmp_path / "runs", "--endpoint", receiver.url, status=1)
    assert "delivered 0 items from 1 spool; refused for their age, and set aside in the spool: 1" == printed.last
    for words in ("out_of_order_time_window", "reject_old_samples_max_age", "monitel replay --rejected"):
        assert words in printed.stderr
    assert [*folder.glob("rejected-*.log")]


def test_record_that_another_process_delivers_meanwhile_is_no_error(
    receiver: Receiver, program: Program, tmp_path: Path
) -> None:
    """Its folder is gone when its turn comes."""
    event = LogRecord(1, 1, 9, "event", None, {})
    folders = [leave(tmp_path / "runs", [("logs", EVENT, tuple(event))]) for _ in range(3)]

    def deliver_the_others(_request: Request) -> None:
        for folder in folders[1:]:
            rmtree(folder, ignore_errors=True)

    receiver.rule(deliver_the_others)
    lines = program("replay", tmp_path / "runs", "--endpoint", receiver.url).stdout.splitlines()
    assert "delivered 1 item from 1 spool" == lines[-1]


@pytest.mark.parametrize("status", [413, 500])
def test_request_that_the_backend_cannot_take_does_not_stop_the_replay(
    receiver: Receiver, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A request that is too large is halved; an item that breaks the backend is found and set aside."""
    events = [LogRecord(number + 1, number + 1, 9, f"event {number}", None, {}) for number in range(100)]
    folder = leave(tmp_path / "runs", [("logs", EVENT, tuple(each)) for each in events])

    def refuse(request: Request) -> Answer | None:
        names = [each.name for each in records_of(request.message)]
        return Answer(status) if (len(names) > 10 if status == 413 else "event 99" in names) else None

    receiver.rule(refuse)
    monkeypatch.setattr(monitel_otlp.export.sender, "_LONGEST_PAUSE", 0.01)
    program("replay", tmp_path / "runs", "--endpoint", receiver.url, status=int(status != 413))
    if status == 413:
        assert [f"event {number}" for number in range(100)] == receiver.record_names()
    else:
        assert b"event 99" in next(folder.glob("rejected-*.log")).read_bytes()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_backend_that_is_down_gets_no_attempt_for_each_spool(
    request: pytest.FixtureRequest, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Five for the first signal, and one for each other signal. What remains is named for each spool."""
    receiver = request.getfixturevalue("grpc_receiver" if protocol == "grpc" else "receiver")
    answer: Any = Answer(503)
    if protocol == "grpc":
        import grpc
        from tests.support.grpc_receiver import GrpcAnswer

        answer = GrpcAnswer(code=grpc.StatusCode.UNAVAILABLE)
    monkeypatch.setattr("monitel_otlp.export.sender._LONGEST_PAUSE", 0.01)
    event = LogRecord(1, 1, 9, "event", None, {})
    for _ in range(3):
        leave(tmp_path / "many", [("logs", EVENT, tuple(event)), ("metrics", NUMBERS, [(1, 1, 0.5)])])
    receiver.rule(lambda _: answer)
    printed = program("replay", tmp_path / "many", "--endpoint", receiver.url, "--protocol", protocol, status=1)
    assert (5, 1) == (len(receiver.of("metrics")), len(receiver.of("logs")))
    assert 6 == printed.stderr.count("run this command again")
