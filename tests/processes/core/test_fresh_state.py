"""The check at the end of each test: it names the test that leaves state, and the next test starts with a fresh one."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree as ET

from tests.support.paths import ROOT

_BEGIN = """
import logging, os, signal, threading
import pytest
import monitel
from monitel.stats import before_flush
from tests.support import state

kept, entered, end = [], threading.Event(), threading.Event()

@pytest.fixture(autouse=True)
def finds_nothing():
    assert monitel.get_step() is None
    assert ((), []) == (monitel.handlers._handlers, before_flush._functions)
    assert [] == monitel.counters() and {} == monitel.wait_counters()
    assert 0 == monitel.stat("named").count
    assert "MONITEL_LEFT" not in os.environ and "OTEL_SERVICE_NAME" not in os.environ
    assert [] == os.listdir()
    assert logging.WARNING == logging.getLogger().level
    assert signal.SIG_DFL == signal.getsignal(signal.SIGALRM)
    yield

def wait():
    entered.set()
    end.wait()
"""
_PIPELINE = """\
import monitel_otlp
kept.append(monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", export_interval=3600.0))"""
_NAMED = """\
monitel.stat("named").add(1)
monitel.counter("tokens").add(1)
monitel.set_step(7)
with monitel.WaitCounter("data").guard():
    pass
open("file", "w").close()"""
_THREAD = """\
state._PATIENCE = 0.01
threading.Thread(target=wait, name="worker", daemon=True).start()
assert entered.wait(60)"""
#: Tests in their order, each with what it is blamed for: the one after it must not be blamed, nor find anything.
_TESTS = [
    (_PIPELINE, "1 running pipelines"),
    ("monitel.register_event_handler(print)", "the event handler <EventHandlerHandle of <built-in function print>>"),
    ("before_flush.register(print)", "a before_flush function"),
    (_NAMED, ""),
    ("kept.append(monitel.Stat('loss', [], 1e9))\nkept[-1].add(1)", "the Stat 'loss'"),
    ("kept.append(monitel.Stat('another', [], 1e9))\nraise ValueError('it has a traceback')", "failure"),
    ("cycle = [monitel.Stat('cycle', [], 1e9)]\ncycle.append(cycle)", ""),
    (_THREAD, "the thread 'worker'"),
    ("state._PATIENCE = 60\nthreading.Timer(0.05, int).start()", ""),
    ("logging.getLogger().setLevel(logging.DEBUG)", "a changed root logger"),
    ("logging.getLogger().addHandler(logging.NullHandler())", "a changed root logger"),
    ("signal.signal(signal.SIGALRM, lambda *_: None)", "a changed handler of signals"),
    ("os.environ['MONITEL_LEFT'] = '1'", "a changed environment"),
    ("pass", ""),
]


def test_what_a_test_leaves_is_named_at_its_end(tmp_path: Path) -> None:
    """Handlers, Stats, threads, pipelines and settings of the process: by name, at the test that left them, once."""
    tests = (f"def test_{number}():\n{indent(body, '    ')}\n" for number, (body, _) in enumerate(_TESTS))
    (tmp_path / "test_leaving.py").write_text(_BEGIN + "".join(tests), "utf-8")
    plugins = [f"-ptests.support.{name}" for name in ("scripts", "twins", "state", "backends")]
    options = ["-pno:cacheprovider", "-q", "-c/dev/null", f"--rootdir={tmp_path}", "--junitxml=report.xml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OTEL_SERVICE_NAME": "of the caller"}
    command = [sys.executable, "-m", "pytest", *plugins, *options, "test_leaving.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert 1 == done.returncode, done.stdout
    for number, case in enumerate(ET.parse(tmp_path / "report.xml").iter("testcase")):
        found = [f"{each.tag} {each.get('message', '')}" for each in case if each.tag in {"error", "failure"}]
        words = _TESTS[number][1]
        expected = words if words == "failure" else f"the test leaves {words}\n"
        assert bool(words) == len(found), found
        assert not words or expected in f"{found[0]}\n"
