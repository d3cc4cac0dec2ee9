"""monitel-otlp on Windows and macOS: telemetry reaches a backend over HTTP, and what is missing is named."""

from tests.nightly.platforms.conftest import RunOn
from tests.support.receiver import Receiver

_UNAVAILABLE = "this platform has neither descriptors of folders nor locks of open files as Linux has them"

_TRAIN = """
import logging, sys
import monitel, monitel_otlp
from monitel import COUNT, SUM, Stat, profiler
from opentelemetry import metrics, trace

logging.basicConfig(format="%(message)s")
pipeline = monitel_otlp.configure(*PLACE, service_name="train", export_interval=0.2, spans=True, sigterm="auto")
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM], 60.0)
    for number in range(10):
        monitel.set_step(number)
        loss.add(number)
    clock.advance(60)
    monitel.close_expired_windows()
monitel.emit("checkpoint", path="step-9.pt")
with profiler.record_function("save"), monitel.activity("checkpoint.save"):
    pass
metrics.get_meter("own").create_counter("own").add(3)
with trace.get_tracer("own").start_as_current_span("own"):
    pass
late = Stat("late", [SUM], 3600.0)
late.add(1.0)
"""
_SEND = _TRAIN.replace("*PLACE", "endpoint=sys.argv[1]")


def test_telemetry_reaches_a_backend(run_on: RunOn, platform: str, receiver: Receiver) -> None:
    """Windows, events, spans, and data of the SDK are exported, at exit too, and nothing is logged."""
    finished = run_on(platform, "-c", _SEND, receiver.url)
    assert ([10], [45.0]) == (receiver.values("loss.count"), receiver.values("loss.sum"))
    assert [1.0] == receiver.values("late.sum")
    assert 3 in receiver.values("own")
    assert "checkpoint" in receiver.record_names()
    assert {"save", "own"} == {span.name for span in receiver.spans()}
    assert {0} == {*receiver.values("monitel.dropped")} | {0}
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("monitel")]
    assert [] == lines, finished.stderr


def test_unreachable_backend_on_windows(run_on: RunOn) -> None:
    """Items that cannot be sent are kept in memory. At exit they are lost, and the reason is logged once."""
    finished = run_on("windows", "-c", _SEND, "http://127.0.0.1:9")
    assert 1 == finished.stderr.count(_UNAVAILABLE), finished.stderr
    assert "dropped" in finished.stderr


def test_command_that_needs_what_is_missing_names_it(run_on: RunOn) -> None:
    """In one line, without a traceback."""
    for arguments in (["cat", "."], ["ledger"], ["run", "--", "true"]):
        finished = run_on("windows", "-m", "monitel", *arguments, returncode=1)
        assert (1, True) == (len(finished.stderr.splitlines()), "this platform" in finished.stderr), finished.stderr
