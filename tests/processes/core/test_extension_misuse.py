"""Misuse of the C extensions raises, and never ends the process.

Objects that were never initialized, attributes that were deleted, wrong numbers and types of arguments, and
initializers that are called again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support.paths import ROOT

import monitel

PACKAGE = Path(monitel.__file__).parent
SOURCES = {path.stem for path in (ROOT / "src" / "monitel").rglob("*_c.c")}


def _extensions() -> list[str]:
    """Return the names of the extensions that were built, within the package."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob(f"*_c{EXTENSION_SUFFIXES[0]}"))
    return sorted(".".join((*path.parts[:-1], path.name.partition(".")[0])) for path in found)


EXTENSIONS = _extensions()

#: Scripts by extension and name; the extension is ``c``.
MISUSES = {
    ("_window_c", "Stat that was never opened"): """
        class Raw(c.Accumulator): pass
        c.own_add(Raw)
        for raw in (Raw(), Raw.__new__(Raw, 1, named=2)):
            refused(RuntimeError, raw.add, 1.0)
            refused(RuntimeError, raw._reserve, [])
            assert [None] * 3 == [raw._close(), raw._close_expired(), raw._reset()]
            assert (0, 0, 0, 0) == (raw.count, raw.discarded, raw.max_samples, raw._window_ns)
            refused(RuntimeError, raw.add, 1)
        c.open_windows()
    """,
    ("_window_c", "interval without a length"): """
        class Raw(c.Accumulator): pass
        raw = Raw()
        for window, most in ((0, 1), (-5, 1), (1, 0), (10**9, -1)):
            refused(ValueError, raw._open, window, most, None, True, True)
        refused(RuntimeError, raw._reserve, [])
    """,
    ("_window_c", "second opening"): """
        class Raw(c.Accumulator): pass
        raw = Raw()
        raw._open(10**9, 3, None, True, True)
        raw._open(5, 1, None, False, False)
        assert (10**9, 3) == (raw._window_ns, raw.max_samples)
    """,
    ("_window_c", "add() of a foreign class"): """
        class Foreign: pass
        for wrong in (Foreign, int, type, 3, None, Foreign()):
            refused(TypeError, c.own_add, wrong)
        refused(TypeError, monitel.Stat.add, Foreign(), 1.0)
        assert not hasattr(Foreign, "add")
    """,
    ("_window_c", "untracked objects"): """
        for _ in range(100):
            for wrong in (lambda: None, (each for each in "x"), type("Made", (), {}), [], 1, sys._getframe()):
                refused(TypeError, c.untrack, wrong)
    """,
    ("torch.stages._cycle_c", "cycle that was never initialized"): """
        made = c.Cycle.__new__(c.Cycle)
        refused(TypeError, made.__init__)
        made.batch_ended(1, iter("x"), 1, True)
        made.backward_began(2)
        made.backward_ended(3)
        refused(AttributeError, made.optimizer_ended, 4)
        assert 0 == made.remembered
        assert ("other", False, 3) == made.in_flight()
    """,
    ("torch.stages._cycle_c", "deleted function"): """
        made = c.Cycle(print)
        del made._ended
        made.optimizer_began_in_backward()
        refused(AttributeError, made.backward_ended, 1)
        made.__init__(lambda stages: None)
        made.backward_ended(2)
        made.optimizer_ended(3)
    """,
    ("torch.stages._cycle_c", "initializer called by the function"): """
        def ended(stages):
            made.__init__(ended)
            del made._ended
            gc.collect()
        made = c.Cycle(ended)
        made.backward_ended(1)
        made.optimizer_ended(2)
        made.backward_ended(3)
        refused(AttributeError, made.optimizer_ended, 4)
    """,
    ("torch.stages._cycle_c", "numbers of arguments"): """
        made = c.Cycle(print)
        for count in (0, 1, 2, 3, 5, 6):
            refused(TypeError, made.batch_ended, *range(count))
        refused(TypeError, made.waited, 1, 2)
        for wrong in ((), (1,), (1, 2, 3), (None, 1), (1, "2")):
            refused(TypeError, made.wait_ended, *wrong)
    """,
    ("profiler.ranges._ranges_c", "numbers of arguments"): """
        for function, least, most in ((c.begin, 3, 3), (c.end, 2, 3), (c.record_past, 5, 5)):
            for count in range(8):
                if not least <= count <= most:
                    refused(TypeError, function, *[None] * count)
    """,
    ("profiler.ranges._ranges_c", "context with another value"): """
        import contextvars
        label = object()
        c.begin(label, "outer", None)
        for variable in contextvars.copy_context():
            variable.set(5)
        assert None is c.current()
        begun = c.begin(label, "inner", None)
        assert None is begun.parent and begun is c.current()
        for variable in contextvars.copy_context():
            variable.set("text")
        c.end(label, begun)
        refused(AssertionError, c.end, label, 5)
    """,
    ("profiler.ranges._ranges_c", "clock before zero"): """
        class Clock:
            def monotonic_ns(self): return -7
        c.set_clock(Clock(), 0)
        refused(ValueError, c.begin, 1, "x", None)
        refused(ValueError, c.now)
        c.set_clock(None, 0)
        refused(TypeError, type(c.begin(1, "x", None)))
    """,
    ("_activities_c", "names that are not exactly str"): """
        class Name(str):
            def __hash__(self):
                made.activity(f"another {len(self)}")
                return 1
            __eq__ = lambda self, other: False
        made = c.Activities(lambda name: (Name("x" * len(name)), False), lambda function, name: function)
        activities = [made.activity("y" * length) for length in range(30)]
        assert {"x" * length for length in range(30)} == {each.name for each in activities}
        assert all(type(each.name) is str for each in activities)
        for answer in (None, 5, (), ("x",), (5, False), ["x", False]):
            refused(TypeError, c.Activities(lambda name: answer, len).activity, "x")
    """,
    ("_activities_c", "activities before the begin"): """
        made = c.Activities(lambda name: (name, False), lambda function, name: function)
        activity = made.activity("x")
        with activity, activity:
            assert (None, (0, "", 0)) == (made.read(), made.position())
        activity.__exit__()
        made.end_startup("y")
        made.stop()
        refused(TypeError, type(activity))
        refused(TypeError, type(activity).__new__, type(activity))
        refused(TypeError, c.Activities.__new__, c.Activities)
    """,
    ("_bounded_queue_c", "initializer and callbacks"): """
        sys.unraisablehook = lambda report: reports.append(report.exc_type)
        reports = []
        queue = c.BoundedQueue(2, 1000, wake=5, evicted="x")
        queue.__init__(7)
        for number in range(4):
            queue.put(number)
        assert [2, 3] == queue.take(9)
        assert {TypeError} == set(reports)
        refused(TypeError, queue.put)
        refused(TypeError, queue.put, 1, 2, 3)
        refused(TypeError, queue.put, item=1, another=2)
        refused(TypeError, c.BoundedQueue.__new__, c.BoundedQueue)
    """,
    ("_context_c", "files that are too small"): """
        refused(RuntimeError, c.set_step, 1)
        descriptor = os.open("page", os.O_RDWR | os.O_CREAT)
        for length in (0, 8191):
            os.truncate("page", length)
            refused(ValueError, c.open, descriptor, 1, None, print)
        refused(OSError, c.open, 1000, 1, None, print)
        c.beat()
        assert b"" == c.content()
        os.truncate("page", 8192)
        c.open(descriptor, 1, None, "not callable")
        refused(TypeError, c.set_step, 1)
        c.beat()
        for wrong in ((), (1,), (1, "x", 2, 3, 4), (1, 2, 3, 4), (1, "\\ud800", 3, 4), (1, "", 3, [])):
            refused((TypeError, UnicodeError), c.enter_wait, *wrong)
        c.close()
    """,
    ("_sigterm_c", "functions in another order"): """
        import _signal
        refused(RuntimeError, c.wait)
        c.stop()
        c.live_on()
        default = _signal.getsignal(_signal.SIGTERM)
        assert not c.chain(default)
        c.begin()
        assert not c.chain(default) and not c.decides(default) and c.is_default()
        for wrong in (b"", b"x" * 8, None, 5):
            refused(TypeError, c.restore, wrong)
    """,
    ("_crash_c", "arguments of another type"): """
        for wrong in ((), (b"x",), (b"x", [], 1), (None, (), 1), (b"x", ("x",), 1), (b"x", (None, 11), 1), (5, (), 1)):
            refused(TypeError, c.install, *wrong)
        refused(ValueError, c.install, b"x\\0", (), 1)
        refused(ValueError, c.install, b"x" * 5000, (), 1)
        refused(OverflowError, c.install, b"x", (1 << 80,), 1)
        refused(TypeError, c.check, "x")
        assert 0 == c.install(b"x", (0, -1, 1 << 31), 1)
        c.uninstall()
    """,
}

PRELUDE = """
import gc, os, sys
import monitel
from tests.support.paths import ROOT
from tests.nightly.leaks.cases import extension, refused
from tests.support.paths import ROOT
c = extension({!r})
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the extensions, and return how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "MONITEL_NO_EXTENSIONS": "0"}
    command = [sys.executable, "-X", "faulthandler", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )


def test_each_extension_is_misused() -> None:
    """A new extension needs a case. All of them are built where that is required."""
    built = {name.rpartition(".")[2] for name in EXTENSIONS}
    assert SOURCES == {name.rpartition(".")[2] for name, _ in MISUSES}
    assert built == SOURCES or os.environ.get("MONITEL_REQUIRE_EXTENSIONS") != "1"


@pytest.mark.parametrize(("name", "misuse"), MISUSES)
def test_misuse_raises(name: str, misuse: str, tmp_path: Path) -> None:
    """Each call of the script is refused, or is harmless."""
    if name not in EXTENSIONS:
        pytest.skip(f"monitel.{name} is not built")
    script = tmp_path / "script.py"
    script.write_text(PRELUDE.format(name) + dedent(MISUSES[name, misuse]) + 'os.write(1, b"done")\n', "utf-8")
    ended = run(tmp_path, script)
    assert (0, "done") == (ended.returncode, ended.stdout), ended.stderr


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_process_survives_calls_at_random(name: str, seed: int, tmp_path: Path) -> None:
    """Thousands of calls with arguments of wrong types, some of which other calls have returned."""
    ended = run(tmp_path, ROOT / "tests" / "extension_attack.py", name, seed)
    last_call = (tmp_path / "last-call").read_text("utf-8", "replace").strip()
    assert (0, "done") == (ended.returncode, ended.stdout[-5:].strip()), f"{last_call}\n{ended.stderr}"
