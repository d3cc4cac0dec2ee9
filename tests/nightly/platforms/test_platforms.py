"""monitel without what Windows or macOS do not have, see ``reduced/sitecustomize.py``: it works as far as it can."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.receiver import Receiver
from tests.support.scripts import Ended, Run

_REDUCED = Path(__file__).parent / "reduced"

RunOn = Callable[..., Ended]  # type of the fixture ``run_on``


@pytest.fixture
def run_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOn:
    """Return a function that runs Python in an empty folder, on ``"windows"`` or ``"macos"``; a warning is an error."""
    for name in ("MONITEL_BLACK_BOX_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)

    def run_on(platform: str, *arguments: object, env: Mapping[str, str] | None = None, returncode: int = 0) -> Ended:
        own = {"MONITEL_TEST_PLATFORM": platform, "PYTHONPATH": str(_REDUCED), "HOME": str(tmp_path)}
        return run("-W", "error", *arguments, env={**own, **(env or {})}, returncode=returncode, fresh=True)

    return run_on


platforms = pytest.mark.parametrize("platform", ["windows", "macos"])

_WORK = """
import json, os, sys, threading
assert sys.platform == {"windows": "win32", "macos": "darwin"}[os.environ["MONITEL_TEST_PLATFORM"]]
assert hasattr(os, "fork") == (sys.platform == "darwin") and not os.path.exists("/proc/self/stat")
import monitel
from monitel import COUNT, HISTOGRAM, MEAN, SUM, Stat, profiler
from monitel.profiler import ranges

events, ended = [], []
monitel.register_event_handler(events.append)
with monitel.testing.ManualClock() as clock:
    loss = Stat("loss", [COUNT, SUM, MEAN, HISTOGRAM], 60.0)
    for number in range(10):
        monitel.set_step(number)
        loss.add(number)
    clock.advance(60)
    monitel.close_expired_windows()
with monitel.stat("time", window_size=3600.0).time():
    pass
monitel.emit("checkpoint", path="step-9.pt")
monitel.log({"accuracy": 0.5})
monitel.config({"rate": 0.1})
monitel.counter("samples").add(32)
with monitel.WaitCounter("rendezvous").guard():
    pass
with ranges.listen(ended=lambda each: ended.append(each.name)), profiler.record_function("save"):
    with monitel.activity("checkpoint.save"):
        pass
with profiler.profile() as profile, profiler.record_function("step"):
    pass
profile.export_chrome_trace("trace.json")
profiler.tensorboard_trace_handler("traces")(profile)

def worker():
    for number in range(1000):
        shared.add(1)

shared = Stat("shared", [SUM], 3600.0)
threads = [threading.Thread(target=worker) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
monitel.flush()
windows = {key: value for event in events if event.window is not None for key, value in event.data.items()}
assert (10.0, 45.0, 4.5) == tuple(windows[f"loss.{key}"] for key in ("count", "sum", "mean"))
assert 4000.0 == windows["shared.sum"]
assert 3.9 < windows["loss.p50"] < 5.1 and 0 <= windows["time.mean"] < 60
assert ["checkpoint", "run.log", "run.config"] == [event.name for event in events if event.window is None]
assert 1 == monitel.wait_counters()["rendezvous"].count
assert [32] == [reading.total for reading in monitel.counters() if reading.counter.name == "samples"]
book = monitel.ledger()
assert ("import", ["save"]) == (book.origin, ended) and book.activities["checkpoint.save"] > 0
with open("trace.json") as file:
    names = [each["name"] for each in json.load(file)["traceEvents"] if each.get("cat") == "user_annotation"]
assert (["step"], 1) == (names, len(os.listdir("traces")))
print("done")
"""


@platforms
@pytest.mark.parametrize("twin", ["c", "py"])
def test_core_works(run_on: RunOn, platform: str, twin: str) -> None:
    """Stats, events, handlers, ranges, the profiler and the ledger work, with and without the extensions."""
    environment = {"MONITEL_NO_EXTENSIONS": "1"} if twin == "py" else {}
    finished = run_on(platform, "-c", _WORK, env=environment)
    assert ("done\n", "") == (finished.stdout, finished.stderr)


_UNAVAILABLE = "this platform has neither descriptors of folders nor locks of open files as Linux has them"

_TRAIN = """
import logging, sys
import monitel, monitel_otlp
from monitel import COUNT, SUM, Stat, profiler
from opentelemetry import metrics, trace

logging.basicConfig(format="%(message)s")
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], service_name="train", export_interval=0.2, spans=True)
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


@platforms
def test_telemetry_reaches_a_backend(run_on: RunOn, platform: str, receiver: Receiver) -> None:
    """Windows, events, spans, and data of the SDK are exported, at exit too, and nothing is logged."""
    finished = run_on(platform, "-c", _TRAIN, receiver.url)
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
    finished = run_on("windows", "-c", _TRAIN, "http://127.0.0.1:9")
    assert 1 == finished.stderr.count(_UNAVAILABLE), finished.stderr
    assert "dropped" in finished.stderr


def test_command_that_needs_what_is_missing_names_it(run_on: RunOn) -> None:
    """In one line, without a traceback."""
    for arguments in (["cat", "."], ["ledger"], ["run", "--", "true"]):
        finished = run_on("windows", "-m", "monitel", *arguments, returncode=1)
        assert (1, True) == (len(finished.stderr.splitlines()), "this platform" in finished.stderr), finished.stderr
