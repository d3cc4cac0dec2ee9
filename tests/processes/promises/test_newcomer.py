"""First steps: modules are loaded where they are used, and what is recorded without an exporter is reported once."""

import sys
from importlib.util import find_spec
from textwrap import dedent

import pytest
from tests.support.scripts import Run

WARNING = "log(), emit() and windows go nowhere: this process has no exporter."


def test_modules_are_loaded_where_they_are_used(run: Run) -> None:
    """Without a second import, and not before; a missing package is named, and hasattr() is False."""
    script = """
    import sys
    import monitel
    later = {"torch", "profiler", "integrations"}
    assert later <= {*dir(monitel)}, dir(monitel)
    assert not [name for name in sys.modules if name.split(".")[1:2] and name.split(".")[1] in later]
    assert monitel.profiler.ranges.record_function is monitel.profiler.record_function
    assert {"accelerate", "lightning", "transformers"} <= {*dir(monitel.integrations)}
    assert monitel.clock is sys.modules["monitel.clock"]
    assert not hasattr(monitel, "nothing") and not hasattr(monitel.integrations, "nothing")
    try:
        print(hasattr(monitel, "torch"), monitel.torch.instrument.__name__)
    except AttributeError as error:
        print(error)
    """
    expected = "module 'monitel.torch' cannot be imported: No module named 'torch'"
    found = run("-c", dedent(script), fresh=True).stdout.strip()
    assert (expected if find_spec("torch") is None else "True instrument") == found


FORK = "import os\nif os.fork() == 0:\n    monitel.log(x=1)\n    raise SystemExit\nos.wait()"
SPAWN = """\
import multiprocessing
multiprocessing.get_context("spawn").Process(target=monitel.emit, args=("x",)).start()
"""


@pytest.mark.parametrize(
    ("script", "rank", "warnings"),
    [
        ("monitel.log(loss=0.5)", "0", 1),
        ("for n in range(9): monitel.emit('epoch', n=n)", "0", 1),
        ("monitel.stat('loss').add(1)", "0", 1),
        ("monitel.stat('loss').add(1)", "1", 0),
        ("monitel.stat('loss'); monitel.counter('samples').add(); monitel.set_step(1)", "0", 0),
        ("monitel.stat('loss').add(1); monitel.flush(); monitel.stat('loss').get()", "0", 0),
        ("monitel.log(loss=0.5); monitel.register_event_handler(print)", "0", 0),
        (FORK, "0", 0),
        (SPAWN, "0", 0),
    ],
)
def test_what_goes_nowhere_is_reported_once(run: Run, script: str, rank: str, warnings: int) -> None:
    """At the exit, of the first rank; not where an exporter follows, windows are read, or a helper records."""
    if "fork" in script and sys.platform == "win32":
        pytest.skip("no fork: Windows")
    assert warnings == run("-c", f"import monitel\n{script}", fresh=True, env={"RANK": rank}).stderr.count(WARNING)


def test_long_job_without_an_exporter_is_reported_while_it_runs(run: Run) -> None:
    """After some seconds, so that an exporter may follow the first numbers."""
    script = """
    import sys, time
    import monitel
    monitel.log(loss=0.5)
    now = time.monotonic
    time.monotonic = lambda: now() + 6
    monitel.log(loss=0.5)
    print("end", file=sys.stderr)
    """
    assert run("-c", dedent(script), fresh=True).stderr.startswith(WARNING)
