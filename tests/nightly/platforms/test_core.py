"""The core without what Windows or macOS do not have: it is imported, and does its work."""

import pytest
from tests.nightly.platforms.conftest import RunOn

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


@pytest.mark.parametrize("twin", ["c", "py"])
def test_core_works(run_on: RunOn, platform: str, twin: str) -> None:
    """Stats, events, handlers, ranges, the profiler and the ledger work, with and without the extensions."""
    environment = {"MONITEL_NO_EXTENSIONS": "1"} if twin == "py" else {}
    finished = run_on(platform, "-c", _WORK, env=environment)
    assert ("done\n", "") == (finished.stdout, finished.stderr)
