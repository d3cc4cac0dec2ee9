"""Libraries that make greenlets of threads: gevent and eventlet where they are installed, and what they do, reduced."""

import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.checks import EXIT, limit
from tests.support.receiver import Receiver
from tests.support.scripts import finish, started, wait_until_ready

#: A thread of monitel runs in the thread that starts it, as a greenlet does until it switches; others are as before.
REDUCED = """\
import _thread, threading
def replaced(original):
    def start(function, *arguments, **options):
        if not getattr(function.__self__, "name", "").startswith("monitel"):
            return original(function, *arguments, **options)
        function()
    return start
def patch():
    for name in ("start_new_thread", "start_joinable_thread"):
        for module, prefix in ((_thread, ""), (threading, "_")):
            if hasattr(module, prefix + name):
                setattr(module, prefix + name, replaced(getattr(module, prefix + name)))
"""
LIBRARIES = {
    "reduced": REDUCED,
    "gevent": "from gevent.monkey import patch_all as patch\n",
    "eventlet": "import warnings\nwarnings.simplefilter('ignore')\nfrom eventlet import monkey_patch as patch\n",
}
SCRIPT = """
import os, sys, time, threading
if "first" in sys.argv:
    patch()
import monitel, monitel_otlp
if "between" in sys.argv:
    patch()
pipeline = monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", system=False, logging_level="ERROR")
monitel.emit("before")
assert pipeline.force_flush(60)
if "last" in sys.argv:
    patch()
loss = monitel.Stat("loss", [monitel.COUNT], 60.0)
if os.fork() == 0:
    loss.add(1)
    monitel.emit("child")
    sys.exit(not pipeline.force_flush(60))
assert os.wait()[1] == 0
loss.add(1)
monitel.emit("parent")
print("ready", flush=True)
if "wait" in sys.argv:
    while True:
        time.sleep(0.01)
"""


def skip_without(library: str) -> None:
    """Skip a test whose library is not installed. It is not imported: eventlet would warn of forks in later tests."""
    if library in {"gevent", "eventlet"} and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.parametrize(("when", "end"), [("first", "wait"), ("between", "exit"), ("last", "exit"), ("last", "wait")])
@pytest.mark.parametrize("library", [*LIBRARIES])
def test_threads_that_wait_in_c_are_threads_of_the_system(
    receiver: Receiver, tmp_path: Path, library: str, when: str, end: str
) -> None:
    """The job neither hangs nor waits, also in a forked child and on SIGTERM, and everything is delivered."""
    skip_without(library)
    (tmp_path / "job.py").write_text(LIBRARIES[library] + SCRIPT, encoding="utf-8")
    with started(tmp_path, "-W", "ignore", "job.py", receiver.url, when, end, fresh=True) as process:
        wait_until_ready(process)
        begin = time.monotonic()
        if end == "wait":
            process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert (0 if end == "exit" else -signal.SIGTERM) == ended.status, ended.stderr
    assert ended.at - begin <= limit(EXIT)
    names = receiver.record_names()
    assert ["before", "child", "parent"] == sorted(name for name in names if not name.startswith("run."))
    assert [1, 1] == receiver.values("loss.count")


BUSY = """
import sys, time, threading
patch()
import monitel_otlp
with monitel_otlp.configure(endpoint=sys.argv[1], spool_dir="spool", export_interval=0.01) as pipeline:
    counter = pipeline.meter_provider.get_meter("mine").create_counter("adds")
    end = time.monotonic() + 1
    def add():
        while time.monotonic() < end:
            counter.add(1)
            time.sleep(0)
    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_instruments_are_used_by_greenlets_and_read_by_a_thread(
    receiver: Receiver, tmp_path: Path, library: str
) -> None:
    """A greenlet that waits for a lock which the thread holds goes on."""
    skip_without(library)
    (tmp_path / "job.py").write_text(LIBRARIES[library] + BUSY, encoding="utf-8")
    with started(tmp_path, "-W", "ignore", "job.py", receiver.url, fresh=True) as process:
        ended = finish(process)
    assert 0 == ended.status, ended.stderr
    assert receiver.values("adds")[-1] > 1000
