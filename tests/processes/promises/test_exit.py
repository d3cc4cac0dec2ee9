"""Exit of a process: everything recorded is delivered or on disk, the exit does not wait, and the status stays."""

import re
import sys
from pathlib import Path

import pytest
from tests.processes.patience import IN_TIME, SHORT, with_patience
from tests.processes.promises.jobs import replay
from tests.support.inbox import DEADLINE
from tests.support.receiver import Receiver
from tests.support.scripts import CONFIGURE, PRINT_TIME, RECORDED, TRAIN, Run
from tests.support.spools import arrived, files, last_line, spooled

MANY = {
    "events": "monitel.emit('event', number=number)",
    "windows": "stat = stats[number % 100]; stat.add(number); stat.flush()",
    "ranges": "with record_function(f'range {number}'): pass",
}
FILL = """\
from threading import Thread
from monitel.profiler import record_function
stats = [Stat(f"stat{number}", [COUNT], 3600.0) for number in range(100)]
for number in range(25_000):
    PRODUCE
def work():
    while True:
        sum(range(1000))
Thread(target=work, daemon=True).start()
"""


@pytest.mark.timed
@pytest.mark.parametrize("kind", MANY)
def test_many_items_at_the_end_are_all_on_disk(train: Run, run: Run, kind: str) -> None:
    """More than can be encoded in time, beside a thread that never waits; ``cat`` prints each once, in order."""
    configure = CONFIGURE.replace(")", ", spans={'budget': 200_000})", 1)
    ended = train(configure + FILL.replace("PRODUCE", MANY[kind]) + PRINT_TIME, "http://127.0.0.1:9")
    assert ended.exit_s < IN_TIME
    line = last_line(ended.stderr)
    assert (25_000, None) == (line.spooled, line.dropped)
    printed = run("-m", "monitel", "cat", "spool").stdout if kind == "events" else ""
    found = re.findall(r'"key":"number","value":{"intValue":"(\d+)"}', printed)
    assert [*range(25_000 if printed else 0)] == [*map(int, found)]


OPEN = """\
stats = [Stat("loss", [COUNT], 3600.0, attributes={"number": number}) for number in range(2_000)]
samples = []
stats[0]._add_pending(samples.append, lambda: samples[0].resolve(1.0))  # on a device, from which it can be fetched
for stat in stats[1:]: stat.add(1)
stats[-1]._add_pending(samples.append, lambda: time.sleep(1))  # on a device that does not answer
monitel.register_event_handler(lambda event: event.window and time.sleep(0.01))
"""


@pytest.mark.parametrize("backend", ["healthy", "away"])
def test_each_window_that_is_open_at_the_end_is_recorded(receiver: Receiver, train: Run, backend: str) -> None:
    """There are 2,000 Stats, beside a handler that takes 10 ms for each of them, and samples on a device."""
    script = with_patience(CONFIGURE + OPEN + PRINT_TIME, SHORT)
    ended = train(script, receiver.url if backend == "healthy" else "http://127.0.0.1:9")
    assert ended.exit_s < IN_TIME
    line = last_line(ended.stderr)
    windows, spooled_items = line.windows or 0, line.spooled or 0
    assert (2_000, backend == "healthy") == (windows + spooled_items, windows > 0)
    assert (0, None) == (line.events, line.dropped)
    assert [1] * 2_000 == receiver.values("loss.count") + spooled(Path("spool"))[0]


def test_run_without_an_endpoint_is_logged_once_and_on_disk(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """In the default folder; one warning has the path and the variable to set. Shutdowns are idempotent."""
    script = TRAIN.replace('endpoint=sys.argv[1], spool_dir="spool", ', "")
    ended = train(script + "assert pipeline.force_flush(60) and pipeline.shutdown() and pipeline.shutdown()\n")
    assert RECORDED == spooled(tmp_path / "state/monitel")
    (folder,) = (tmp_path / "state/monitel").iterdir()
    assert 0o700 == folder.stat().st_mode & 0o777
    warning, _ = ended.stderr.splitlines()
    assert (True, True) == (str(folder) in warning, "set OTEL_EXPORTER_OTLP_ENDPOINT to send it" in warning)
    line = last_line(ended.stderr)
    assert (12, str(folder), True) == (line.spooled, line.folder, f"replay {folder} --endpoint" in str(line.command))
    replay(receiver.url, "state/monitel")
    assert RECORDED == arrived(receiver)


def test_run_without_items_leaves_nothing(train: Run, tmp_path: Path) -> None:
    """Neither a folder nor a replay in the last line."""
    ended = train('monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool")\n')
    assert ["train.py"] == [each.name for each in tmp_path.iterdir()]
    assert "replay" not in ended.stderr


def test_disabled_pipeline_does_nothing(receiver: Receiver, train: Run, tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED=true: no request, folder, thread or output, and all calls work. So on the other ranks."""
    script = """\
import threading
from opentelemetry import metrics
with pipeline.tracer_provider.get_tracer("mine").start_as_current_span("step"):
    metrics.get_meter("mine").create_counter("mine").add(1)
pipeline.logger_provider.get_logger("mine").emit(event_name="mine")
assert pipeline.force_flush(60) and pipeline.shutdown()
assert not [each.name for each in threading.enumerate() if "monitel" in each.name]
"""
    for env in ({"OTEL_SDK_DISABLED": "true"}, {"MONITEL_RANKS": "zero", "RANK": "1"}):
        ended = train(TRAIN + script, receiver.url, env=env)
        assert ("", "") == (ended.stdout, ended.stderr)
        assert ([], ["train.py"]) == (receiver.requests, [path.name for path in tmp_path.iterdir()])


#: Ctrl-C while the process ends.
AGAIN = (
    "import os\nmonitel.register_event_handler(lambda event: event.name == 'run.ended' and os.kill(os.getpid(), 2))\n"
)
CODES = [
    ("", 0, "completed"),
    ("sys.exit('no data')\n", 1, "failed"),
    ("quit(5)\n", 5, "failed"),
    ("sys.exit(0.0)\n", 1, "failed"),
    ("import pickle\npickle.loads(pickle.dumps(sys.exit))(3)\n", 3, "failed"),
    ("try: sys.exit(type('', (), {'__eq__': lambda *_: 1 / 0})())\nexcept SystemExit: pass\n", 0, "completed"),
    ("exit(0)\n", 0, "completed"),
    ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n", 0, "completed"),
    ("raise ValueError\n", 1, "failed"),
    ("raise KeyboardInterrupt\n", -2, "interrupted"),
    (f"{AGAIN}raise KeyboardInterrupt\n", -2, "interrupted"),
    (f"{AGAIN}with pipeline:\n    raise KeyboardInterrupt\n", -2, "interrupted"),
    (f"{AGAIN}pipeline.shutdown()  # raises it afterwards\n", -2, "completed"),
    ("try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    sys.exit(1)\n", 1, "interrupted"),
    ("with pipeline:\n    raise ValueError\n", 1, "failed"),
    ("sys.ps1 = '>>> '\nraise ValueError\n", 1, "completed"),
    ("sys.ps1 = '>>> '\nsys.exit(3)\n", 3, "failed"),
    ("sys.ps1 = '>>> '\ntry: sys.exit(3)\nexcept SystemExit as error: sys.last_value = error\n", 0, "completed"),
]


@pytest.mark.parametrize(("end", "status", "expected"), CODES)
def test_everything_is_delivered_and_the_run_has_its_status(
    receiver: Receiver, train: Run, end: str, status: int, expected: str
) -> None:
    """However it ends: open windows are closed, nothing stays on disk, and only Python's traceback is printed.

    The events ``run.started`` and ``run.ended`` enclose the others.
    """
    script = TRAIN + "monitel.set_step(7)\n" + end
    printed = train(script, receiver.url, returncode=status, env={"MONITEL_RUN_EVENTS": "1"}).stderr
    assert ([*range(1, 12)], ["run.started", "checkpoint", "run.ended"]) == arrived(receiver)
    assert (55, []) == (receiver.values("loss.sum")[-1], files("."))
    line = last_line(printed)
    assert (11, 3, None, None) == (line.windows, line.events, line.dropped, line.spooled)
    assert ("raise" in end and "except" not in end) == printed.count("Traceback")
    began, ended = receiver.records("run.started")[0].attributes, receiver.records("run.ended")[0].attributes
    assert (expected, 7) == (ended["run.status"], ended["run.step"])
    assert 0 < ended["run.duration"] < DEADLINE
    assert sys.version.split()[0] == began["run.version.python"]
    assert began["run.command"].endswith(f"train.py {receiver.url}")


@pytest.mark.timed
def test_handler_that_hangs_at_the_exit_loses_nothing_of_others(receiver: Receiver, train: Run) -> None:
    """The pipeline's own handler comes first; the process ends in time."""
    hang = "import threading\nmonitel.register_event_handler(lambda event: event.name == 'run.ended' and lock.wait())\n"
    script = CONFIGURE + "monitel.emit('event')\n" + hang + "lock = threading.Event()\n"
    ended = train(with_patience(script + PRINT_TIME, SHORT), receiver.url, env={"MONITEL_RUN_EVENTS": "1"})
    assert ended.exit_s < IN_TIME
    assert ["run.started", "event", "run.ended"] == receiver.record_names()


SAY = """\
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
monitel.register_event_handler(lambda event: say(event.window.name, int(event.window.sum)))
stat = Stat("x", [SUM], 3600.0)
stat.add(1)
stat.add(2)
"""
OTHERS = """\
import atexit, gc, threading
monitel.stat("registered").add(5)
def shut_down():
    stat.add(10)
    monitel.flush()
    say("shut down")
    stat.add(20)
def work():
    threading.main_thread().join(30)
    stat.add(100)
def run():
    while True: busy.add(1)
atexit.register(shut_down)
threading.Thread(target=work).start()
busy = Stat("busy", [SUM], 3600.0)
threading.Thread(target=run, daemon=True).start()
gc.disable(); cycle = [Stat("cycle", [SUM], 3600.0)]; cycle[0].add(7); cycle.append(cycle); del cycle
"""
FAIL = """\
def fail(event): raise ValueError("fails for " + event.window.name)
monitel.register_event_handler(fail)
other = Stat("y", [SUM], 3600.0)
other.add(4)
"""


def test_handlers_receive_every_open_window(train: Run) -> None:
    """Without an exporter too: after ``atexit`` functions and threads, in cycles, beside a thread that adds.

    A handler that fails is reported for each window, and stops no other.
    """
    assert "x 3\n" == train(SAY).stdout
    assert "" == train(SAY + "os._exit(0)\n").stdout
    lines = train(SAY + OTHERS).stdout.splitlines()
    known = [line for line in lines if not line.startswith("busy ")]
    assert {"x 113", "registered 5", "cycle 7"} == {*known[:3]}
    assert ["shut down", "x 20"] == known[3:]
    assert 1 <= len(lines) - len(known) <= 2
    ended = train(SAY + FAIL)
    assert "x 3\ny 4\n" == ended.stdout
    assert [1, 1] == [ended.stderr.count(f"ValueError: fails for {name}\n") for name in "xy"]
