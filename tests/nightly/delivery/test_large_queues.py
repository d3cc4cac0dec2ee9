"""Exit with 100,000 queued items: in time, and without losses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.processes.otlp.pipeline.test_bulkheads_exit import backend, numbers
from tests.support.checks import EXIT, limit
from tests.support.pipelines import HOLD_ENCODER, RELEASE_ENCODER
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import folders, last_line

ITEMS = 100_000

FILL = f"""\
from threading import Thread
from monitel.profiler import record_function
_, url, kind, busy, folder = sys.argv
options = {{"spans": {{"budget": 200_000}}}}
pipeline = monitel_otlp.configure(endpoint=url, spool_dir=folder, export_interval=3600.0, **options)
stats = [Stat(f"stat{{number}}", [COUNT], 3600.0) for number in range(100)]

def event(number):
    monitel.emit("event", number=number)
def window(number):
    stats[number % 100].add(number)
    stats[number % 100].flush()
def range_(number):
    with record_function(f"range {{number}}"):
        pass

{HOLD_ENCODER}
produce = {{"events": event, "windows": window, "ranges": range_}}[kind]
for number in range(100_000):
    produce(number)
{RELEASE_ENCODER}
if busy == "busy":
    def work():
        while True:
            sum(range(1000))
    Thread(target=work, daemon=True).start()
print(time.monotonic(), flush=True)
"""


def check_windows(receiver: Receiver) -> None:
    """Check that no sample is missing, and that no point arrived twice."""
    values: dict[str, list[float]] = {}
    for point in receiver.all_points():
        if point.metric.startswith("stat"):
            values.setdefault(point.metric, []).append(point.value)
    assert 100 == len(values)
    for found in values.values():
        assert len(found) == len(set(found))
        assert ITEMS / 100 == max(found)


@pytest.mark.parametrize(
    ("kind", "answers", "load"),
    [
        *((kind, "healthy", "idle") for kind in ("events", "windows", "ranges")),
        *((kind, "refuses", "busy") for kind in ("events", "windows", "ranges")),
        ("ranges", "hangs", "busy"),
    ],
)
def test_exit_with_full_queues_loses_nothing(
    *, train: Run, run: Run, tmp_path: Path, kind: str, answers: str, load: str
) -> None:
    """Each of 100,000 items arrives once, during the run or by a replay of the spool."""
    with backend(answers) as (url, received), Receiver() as replayed:
        ended = train(FILL, url, kind, load, "spool", timeout=120)
        assert ended.at - float(ended.stdout) < limit(EXIT)
        assert not last_line(ended.stderr).dropped
        arrived = received or replayed
        if found := folders(tmp_path / "spool"):
            run("-m", "monitel", "replay", *found, "--endpoint", arrived.url, timeout=120)
        if kind == "windows":
            check_windows(arrived)
        else:
            assert Counter(range(ITEMS)) == numbers(arrived, kind)
