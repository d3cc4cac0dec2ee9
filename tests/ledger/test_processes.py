"""The ledger of a process: from its start to its end, after exec and fork, and under torch.compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import RunScript

PRINT = """
import json, monitel
book = monitel.ledger()
print(json.dumps([book.elapsed_ns, dict(book.activities), book.start_ns, book.origin]))
"""
TICK_NS = 10**10 // os.sysconf("SC_CLK_TCK") // 10


def printed(*command: str, twin: str) -> tuple[Any, int, int]:
    """Return what a program prints, and Unix ns around it."""
    environment = {**os.environ, "MONITEL_NO_EXTENSIONS": "1" if twin == "py" else "0"}
    before_ns = time.time_ns()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout), before_ns, time.time_ns()


def test_startup_begins_with_the_process(twin: str) -> None:
    """What ran before the import counts: 0.3 s."""
    script = "import threading; threading.Event().wait(0.3)" + PRINT
    (elapsed_ns, activities, start_ns, origin), before_ns, after_ns = printed(sys.executable, "-c", script, twin=twin)
    assert "process" == origin
    assert {"startup": elapsed_ns} == activities
    assert 300_000_000 <= elapsed_ns <= after_ns - before_ns + TICK_NS
    assert before_ns - TICK_NS <= start_ns <= after_ns - 300_000_000


def test_startup_includes_what_ran_before_exec(twin: str) -> None:
    """A shell that waits and then replaces itself is part of the start, as a launcher's script is."""
    (elapsed_ns, *_), _, _ = printed("sh", "-c", 'sleep 0.3; exec "$0" -c "$1"', sys.executable, PRINT, twin=twin)
    assert elapsed_ns >= 300_000_000


def test_without_proc_it_begins_at_the_import(monitel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that cannot be read, or is an hour ago, is not guessed."""
    now_ns = monitel.activities._activities.now()
    monkeypatch.setattr(monitel.activities, "_HOUR_NS", 0)
    monitel.activities._open()
    book = monitel.ledger()
    assert "import" == book.origin
    assert book.elapsed_ns <= monitel.activities._activities.now() - now_ns


def test_a_forked_child_has_a_ledger_from_its_first_step_on(run_script: RunScript) -> None:
    """A worker has none; a child that trains has one since the fork. The parent's goes on."""
    ended = run_script(
        """
import os
with monitel.activity("evaluation"):
    monitel.set_step(7)
    if os.fork() == 0:
        found = [monitel.ledger()]
        with monitel.activity("data"):
            found.append(monitel.ledger())
        monitel.set_step(1)
        with monitel.activity("data"):
            book = monitel.ledger()
        assert book.elapsed_ns == sum(book.activities.values())
        say(*found, book.origin, *book.activities)
        os._exit(0)
    os.wait()
    book = monitel.ledger()
    assert book.elapsed_ns == sum(book.activities.values())
    say(book.origin, book.current)
say(monitel.ledger().current)
"""
    )
    assert ["None None fork startup data step", "process evaluation", "step"] == ended.lines


@pytest.mark.torch
def test_it_has_no_effect_while_torch_traces(monitel: ModuleType) -> None:
    """A compiled function with an activity has one graph, and runs as without."""
    torch = pytest.importorskip("torch")
    monitel.set_step(1)

    @monitel.activity("decorated")
    def inner(x: Any) -> Any:
        return x * 2

    @torch.compile(fullgraph=True, backend="eager")
    def function(x: Any) -> Any:
        with monitel.activity("inside"):
            return inner(x) + 1

    with monitel.activity("around"):
        assert [3.0, 5.0] == function(torch.tensor([1.0, 2.0])).tolist()
        assert "around" == monitel.ledger().current
    assert not {"inside", "decorated"} & {*monitel.ledger().activities}
