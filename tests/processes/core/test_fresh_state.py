"""The check at the end of each test: it names the test that leaves state, and the next test starts with a fresh one."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.support.paths import ROOT

#: Tests in their order: each leaves something, and the one after it must not be blamed, nor find anything.
_TESTS = """
import logging, os, signal, threading
import pytest
import monitel
from monitel.stats import before_flush
from tests.support import state

kept, entered, end = [], threading.Event(), threading.Event()

@pytest.fixture(autouse=True)
def finds_nothing():
    assert monitel.get_step() is None
    assert () == monitel.handlers._handlers == before_flush._functions
    assert [] == monitel.counters() and {} == monitel.wait_counters()
    assert 0 == monitel.stat("named").count
    assert "MONITEL_LEFT" not in os.environ and "OTEL_SERVICE_NAME" not in os.environ
    assert [] == os.listdir()
    assert logging.WARNING == logging.getLogger().level
    assert signal.SIG_DFL == signal.getsignal(signal.SIGALRM)
    yield

def test_pipeline():
    import monitel_otlp
    kept.append(monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", export_interval=3600.0))

def test_handler():
    monitel.register_event_handler(print)

def test_before_flush():
    before_flush.register(print)

def test_named_things_may_be_left():
    monitel.stat("named").add(1)
    monitel.counter("tokens").add(1)
    monitel.set_step(7)
    with monitel.WaitCounter("data").guard():
        pass
    open("file", "w").close()

def test_stat():
    kept.append(monitel.Stat("loss", [], 1e9))
    kept[-1].add(1)

def test_stat_of_the_failed_test():
    kept.append(monitel.Stat("another", [], 1e9))
    raise ValueError("it has a traceback")

def test_stat_in_a_cycle_is_collected():
    cycle = [monitel.Stat("cycle", [], 1e9)]
    cycle.append(cycle)

def wait():
    entered.set()
    end.wait()

def test_thread():
    state._PATIENCE = 0.01
    threading.Thread(target=wait, name="worker", daemon=True).start()
    assert entered.wait(60)

def test_thread_that_ends_is_awaited():
    state._PATIENCE = 60
    threading.Timer(0.05, int).start()

def test_level_of_the_root_logger():
    logging.getLogger().setLevel(logging.DEBUG)

def test_handler_of_the_root_logger():
    logging.getLogger().addHandler(logging.NullHandler())

def test_signal_handler():
    signal.signal(signal.SIGALRM, lambda *_: None)

def test_environment():
    os.environ["MONITEL_LEFT"] = "1"

def test_variable_of_the_environment_is_hidden(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "job")  # undone

def test_nothing():
    pass
"""

_LEFT = {
    "test_handler": "the event handler <EventHandlerHandle of <built-in function print>>",
    "test_before_flush": "a before_flush function",
    "test_stat": "the Stat 'loss'",
    "test_thread": "the thread 'worker'",
    "test_level_of_the_root_logger": "a changed root logger",
    "test_handler_of_the_root_logger": "a changed root logger",
    "test_signal_handler": "a changed handler of signals",
    "test_environment": "a changed environment",
    "test_pipeline": "1 running pipelines",
}


def test_what_a_test_leaves_is_named_at_its_end(tmp_path: Path) -> None:
    """Handlers, Stats, threads, pipelines and settings of the process: by name, at the test that left them, once."""
    (tmp_path / "test_leaving.py").write_text(_TESTS, "utf-8")
    plugins = [f"-ptests.support.{name}" for name in ("scripts", "twins", "state", "backends")]
    options = ["-pno:cacheprovider", "-q", "-c/dev/null", f"--rootdir={tmp_path}", "--junitxml=report.xml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OTEL_SERVICE_NAME": "of the caller"}
    command = [sys.executable, "-m", "pytest", *plugins, *options, "test_leaving.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert 1 == done.returncode, done.stdout
    report = ET.parse(tmp_path / "report.xml")
    errors, failures = (
        {case.get("name"): found.get("message", "") for case in report.iter("testcase") for found in case.iter(kind)}
        for kind in ("error", "failure")
    )
    assert ["test_stat_of_the_failed_test"] == [*failures], done.stdout
    assert {*_LEFT} == {*errors}, done.stdout
    for name, words in _LEFT.items():
        assert f"the test leaves {words}\n" in f"{errors[name].replace('assert not', chr(10))}\n", name
