"""One rank with step traces. It prints its notes: each range with its path, step, times, thread, arguments and error.

Argument: the number of steps.
"""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import monitel
import monitel_otlp
from monitel.profiler import ranges, record_function
from monitel.profiler.ranges import Range

paths = threading.local()  # the path of the innermost range of each thread: names, each with its number in its parent
numbers: dict[str, int] = {}
notes: list[Any] = []


@contextmanager
def noted(name: str, args: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Record a range, and keep its path on a separate stack."""
    outer = getattr(paths, "current", [])
    key = json.dumps([monitel.get_step(), outer, name])
    number = numbers[key] = numbers.get(key, -1) + 1
    paths.current = [*outer, [name, number]]
    try:
        with record_function(name, args):
            yield
    finally:
        paths.current = outer


def note(ended: Range) -> None:
    error = sys.exc_info()[0]
    thread = {"thread.id": threading.get_native_id(), "thread.name": threading.current_thread().name}
    failed = {"error.type": error.__name__} if error else {}
    times = ended.start_ns, ended.end_ns
    notes.append([paths.current, ended.step, *times, {**thread, **(ended.args or {}), **failed}])


def train(step: int) -> None:
    """Record the ranges of one step, one of them in another thread."""
    monitel.set_step(step)

    def load() -> None:
        with noted("load", {"files": ["a", "b"]}):
            pass

    loading = threading.Thread(target=load, name="loader")
    with noted("forward", {"batch": 32, "text": "straße"}):
        for layer in range(3):
            with noted("layer", {"index": layer, "rate": 0.5, "last": layer == 2}):
                pass
        loading.start()
        loading.join()
    with suppress(ValueError), noted("all_reduce"), noted("wait"):
        raise ValueError(step)


pipeline = monitel_otlp.configure(spool_dir="spool", spans={"step_traces": True}, service_name="job", run_events=False)
with ranges.listen(ended=note):
    for step in range(int(sys.argv[1])):
        train(step)
assert pipeline.shutdown(20.0)
sys.stdout.write(json.dumps(notes))
