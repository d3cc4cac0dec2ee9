"""Tensors on a device at exit and in forked children."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.core_conftest import RunScript

pytest.importorskip("torch", reason="has tensors on a device: torch is not installed")

pytestmark = pytest.mark.torch
SCRIPT = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gc, math
import torch, monitel.torch
from later_device import later, on_later, start
from monitel.torch.scalars import fetcher

start()

def report(event):  # unbuffered: a forked child would copy a line that another thread has begun
    os.write(1, f"{{os.getpid() == parent}} {{event.window.name}} {{event.window.sum}}\\n".encode())

monitel.register_event_handler(report)
parent = os.getpid()
monitel.torch.instrument(waits=False, monitor=False, compilation=False, failures=False)
fetcher._WAIT_S = 0.2
stat = Stat("loss", [SUM], math.inf)
stat.add(on_later(1.0))
stat.add(on_later(2.0))
"""


def test_exit_waits_for_the_device(run_script: RunScript) -> None:
    """Numbers that do not arrive in time are lost: that is logged, and windows have the known samples."""
    answering = "later.answers = True; fetcher._WAIT_S = 20"
    assert ["True loss 3.0"] == run_script(SCRIPT + answering).lines
    ended = run_script(SCRIPT + "stat.add(5.0)")
    assert ["True loss 5.0", "True training.tensors.lost 2.0"] == sorted(ended.lines)
    assert "tensor values are lost: the device had not delivered them when instrumentation ended" in ended.stderr


def test_forked_child_fetches_only_its_numbers(run_script: RunScript) -> None:
    """The parent fetches the numbers put before the fork. No lock that another thread held blocks the child."""
    ended = run_script(
        SCRIPT
        + """
used, = (each for each in gc.get_objects() if isinstance(each, fetcher.Fetcher))
ring, = used.rings()
locked, over = threading.Event(), threading.Event()

def hold_locks():  # in another thread, which the child does not have
    with ring._lock, used._lock, used._advancing, used._captures._lock, monitel.pending.lock():
        locked.set()
        over.wait(20)

stat.flush()  # its window waits for two numbers
stat.add(on_later(4.0))
threading.Thread(target=hold_locks).start()
locked.wait(20)
child = os.fork()
over.set()
later.answers = True
fetcher._WAIT_S = 20
if not child:
    stat.add(on_later(10.0))
    within(20, stat.flush)
    os._exit(0)
os.waitpid(child, 0)
stat.flush()
"""
    )
    assert ["False loss 10.0", "True loss 3.0", "True loss 4.0"] == sorted(ended.lines)
