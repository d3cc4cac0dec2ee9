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
from tests.support import state

state._PATIENCE = 0.01
kept = []

@pytest.fixture(autouse=True)
def finds_nothing():
    assert monitel.get_step() is None
    assert () == monitel.handlers._handlers
    assert [] == monitel.counters() and {} == monitel.wait_counters()
    assert 0 == monitel.stat("named").count
    assert "OTEL_SERVICE_NAME" not in os.environ
    assert [] == os.listdir()
    assert logging.WARNING == logging.getLogger().level
    yield
"""
_NAMED = """\
monitel.stat("named").add(1)
monitel.counter("tokens").add(1)
monitel.set_step(7)
with monitel.WaitCounter("data").guard():
    pass
open("file", "w").close()"""
_PIPELINE = "import monitel_otlp\nkept.append(monitel_otlp.configure(endpoint=None, spool_dir='spool'))"
#: Tests in their order, each with what it is blamed for: the one after it must not be blamed, nor find anything.
_TESTS = [
    (_PIPELINE, "1 running pipelines"),
    ("monitel.register_event_handler(print)", "the event handler <EventHandlerHandle of <built-in function print>>"),
    (_NAMED, ""),
    ("kept.append(monitel.Stat('loss', [], 1e9))\nkept[-1].add(1)", "the Stat 'loss'"),
    ("threading.Thread(target=threading.Event().wait, name='worker', daemon=True).start()", "the thread 'worker'"),
    ("logging.getLogger().setLevel(logging.DEBUG)", "a changed root logger"),
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
        assert bool(words) == len(found), found
        assert not words or f"the test leaves {words}\n" in f"{found[0]}\n"
