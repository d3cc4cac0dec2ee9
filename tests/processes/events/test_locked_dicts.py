"""Forks beside threads that use the dicts of the package: without the GIL, each dict has a lock."""

from __future__ import annotations

import os
from typing import Any

import pytest

RunScript = Any

_LOCKED = """
import asyncio
from monitel import readings, registry, wait_counter
from monitel.profiler import ranges, record_function
from monitel.profiler.ranges import tracks

counted = monitel.counter.__globals__
counter = monitel.counter("tokens", attributes={"split": "train"})
stat = monitel.stat("loss")
with monitel.activity("evaluate"), monitel.WaitCounter("barrier").guard():
    counter.add(5)
    stat.add(1.0)
monitel.counter("forgotten")
monitel.training_time.forget("forgotten")

class Locked(dict):
    \"\"\"A dict whose lock a thread of the parent holds at the fork.\"\"\"

    def wait(self, *arguments):
        say("the child waits for a lock")
        os._exit(1)

for name in ("__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__setitem__", "clear", "copy", "get",
             "items", "keys", "pop", "setdefault", "update", "values"):
    setattr(Locked, name, Locked.wait)

async def record():
    with ranges.listen(ended=lambda each: say(each.track.thread_id == os.getpid())), record_function("a"):
        pass

for owner, name in [(counted, "_counters"), (counted, "_first_of_name"), (vars(registry), "_stats"),
                    (vars(wait_counter), "_waits"), (vars(tracks), "_of_tasks")]:
    owner[name] = Locked(owner[name])
if (pid := os.fork()) == 0:
    say([(each.counter.name, each.total) for each in monitel.counters()], stat.count)
    say(monitel.counter("tokens", attributes={"split": "train"}) is counter, monitel.stat("loss") is stat)
    with monitel.activity("validate"), monitel.WaitCounter("barrier").guard():
        counter.add(1)
    say(sorted(monitel.wait_counters()), list(readings.counter_names()), counter.total)
    asyncio.run(record())
    os._exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_forked_child_waits_for_no_dict(run_script: RunScript) -> None:
    """CPython 3.13 without the GIL may leave a dict locked in the child, if another thread used it at the fork."""
    assert [
        "[('tokens', 0)] 0",
        "True True",
        "['barrier'] ['tokens', 'forgotten'] 1",
        "True",
        "0",
    ] == run_script(_LOCKED).lines
