"""The fuzzer's processes: an input that takes too long fails and is kept, and an end that hangs does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.nightly.readers import fuzz

if TYPE_CHECKING:
    from pathlib import Path

DONE = "print('Done 7 runs in 1 second(s)', flush=True)\n"
DEAF = "import signal\nsignal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
HANG = "import os, sys, time\nos.write(int(sys.argv[1]), b'!')\nwhile True:\n    time.sleep(1)\n"  # until it is killed


def ended(script: str, *, hangs: bool) -> fuzz.Ended:
    """Return how a script has ended, as if it was the process of a target."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(writing)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=[writing],
    )  # fmt: skip
    os.close(writing)
    assert os.read(reading, 1) == (b"!" if hangs else b"")
    os.close(reading)
    return fuzz.end_of(process, time.monotonic() + (0 if hangs else 60))


@pytest.mark.parametrize(
    ("script", "failed"),
    [
        (DONE, False),
        (DONE + "raise SystemExit(77)", True),
        ("pass", True),
        (DEAF + DONE + HANG, False),
        (DONE + HANG, False),
        (HANG, True),
        (DEAF + HANG, True),
    ],
    ids=["done", "crash", "no input", "hangs at the end", "hangs with a signal", "input hangs", "input hangs in C"],
)
def test_ends_of_processes(script: str, failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a process that has run all its inputs may be killed without a failure."""
    monkeypatch.setattr(fuzz, "ABORT_SECONDS", 0.5)
    found = ended(script, hangs=HANG in script)
    assert failed == found.failed, found.report
    assert ("7 inputs" in found.report) == (not failed)


SLOW = """\
import sys
from pathlib import Path
from tests.nightly.readers import fuzz

def target(content):
    while content == b"slow":
        pass

fuzz.FOUND = Path(sys.argv[1])
watched = fuzz.Watch("journal", target, 0.2)
watched(b"fast")
watched(b"slow")
"""


def test_slow_input_is_kept(tmp_path: Path) -> None:
    """The process ends by itself, prints where the input hangs, and leaves it in a file."""
    process = subprocess.run(
        [sys.executable, "-c", SLOW, tmp_path], capture_output=True, text=True, timeout=120, check=False, cwd=fuzz.ROOT
    )
    assert fuzz.SLOW_STATUS == process.returncode, process.stderr
    assert "in target" in process.stderr
    (kept,) = tmp_path.iterdir()
    assert ("journal", b"slow") == (kept.name.partition("-")[0], kept.read_bytes())
