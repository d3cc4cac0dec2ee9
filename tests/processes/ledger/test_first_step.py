"""The first step of a process, and the function that is called with each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.core_conftest import RunScript

SCRIPT = """
import os
import monitel
from monitel.step import advance, first_step, unwatch, watch

seen = []
def watcher(step):
    seen.append(step)

watch(watcher)
advance(3)
found = [first_step()]
monitel.set_step(700)
monitel.set_step(50)
found.append(first_step())
if os.fork() == 0:
    monitel.set_step(9)
    os._exit(first_step() if seen == [3, 700, 50] else 99)
found.append(os.waitstatus_to_exitcode(os.wait()[1]))
unwatch(print)
monitel.set_step(51)
unwatch(watcher)
monitel.set_step(52)
print(found, seen)
"""


def test_first_step_is_the_first_one_that_was_set(run_script: RunScript) -> None:
    """A step that a source has counted is not it; a forked child has its own, and calls no function of its parent."""
    assert ["[None, 700, 9] [3, 700, 50, 51]"] == run_script(SCRIPT).lines
