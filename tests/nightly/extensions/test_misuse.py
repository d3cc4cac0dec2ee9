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
}

PRELUDE = """
import gc, os, sys
import monitel
from tests.nightly.leaks.cases import extension, refused
c = extension({!r})
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the extensions, and return how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "MONITEL_NO_EXTENSIONS": "0"}
    command = [sys.executable, "-X", "faulthandler", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )


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
    ended = run(tmp_path, ROOT / "tests" / "nightly" / "extensions" / "attack.py", name, seed)
    last_call = (tmp_path / "last-call").read_text("utf-8", "replace").strip()
    assert (0, "done") == (ended.returncode, ended.stdout[-5:].strip()), f"{last_call}\n{ended.stderr}"
