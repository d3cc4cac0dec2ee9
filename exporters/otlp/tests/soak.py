"""Minutes of random faults: what was logged is acknowledged, spooled, or counted as dropped; nothing else grows.

Not part of the test-suite; run it with ``pytest exporters/otlp/tests/soak.py``. ``MONITEL_SOAK_SECONDS`` says how long.
"""

from __future__ import annotations

import json
import os
import random
import re
from typing import TYPE_CHECKING

from .inbox import Answer, Request
from .receiver import partial_success

if TYPE_CHECKING:
    from .conftest import Run
    from .receiver import Receiver

SECONDS = float(os.environ.get("MONITEL_SOAK_SECONDS", "110"))
SEED = 20261120

TRAIN = """
import gc, json, random, resource, sys, threading, time
import monitel, monitel_otlp

url, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
threads = threading.active_count()
pipeline = monitel_otlp.configure(endpoint=url, export_interval=0.2, spool_dir="spool")
logged = {"windows": 0, "events": 0}

def count(event):
    logged["windows" if event.window else "events"] += 1

monitel.register_event_handler(count)
stats = [monitel.Stat(f"stat.{n}", monitel.aggregation.TORCHS, 0.05) for n in range(20)]
meter = pipeline.meter_provider.get_meter("mine")
counter = meter.create_counter("mine")

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

begin, early = time.monotonic(), 0
while (elapsed := time.monotonic() - begin) < seconds:
    for stat in stats:
        stat.add(rng.random())
    counter.add(1)
    if rng.random() < 0.2:
        monitel.emit("event", number=logged["events"])
    if not early and elapsed > seconds / 3:
        early = resident()
    time.sleep(0.005)
late = resident()
pipeline.shutdown(5.0)
print(json.dumps({**logged, "early": early, "late": late, "threads": threading.active_count() - threads}))
"""

FAULTS = (
    Answer(503),
    Answer(429, headers={"Retry-After": "0"}),
    Answer(500),
    Answer(400),
    Answer(413),
    Answer(fault="drop unread"),
    Answer(fault="drop unanswered"),
    Answer(fault="drop in answer"),
    Answer(delay=0.1),
)


PATTERNS = {
    "windows": r"exported (\d+) windows",
    "events": r"(\d+) events",
    "dropped": r"dropped (\d+)",
    "spooled": r"; (\d+) in ",
}


def test_everything_is_accounted_for(receiver: Receiver, run: Run) -> None:
    """Over minutes of faults at a fixed seed the numbers add up, memory is flat, and no thread is left."""
    rng = random.Random(SEED)

    def fault(request: Request) -> Answer | None:
        if rng.random() < 0.8:
            return None
        if rng.random() < 0.1:
            return partial_success(request.signal, 1, "one too many")
        return rng.choice(FAULTS)

    receiver.rule(fault)
    ended = run("-c", TRAIN, receiver.url, SECONDS, SEED, timeout=SECONDS + 60)
    told = json.loads(ended.stdout)
    last = ended.stderr.splitlines()[-1]
    numbers = {what: int(found[1]) if (found := re.search(pattern, last)) else 0 for what, pattern in PATTERNS.items()}
    assert told["windows"] + told["events"] == sum(numbers.values()), last
    assert told["windows"] > 20 * SECONDS
    received = {record.attributes["number"] for record in receiver.records("event")}
    assert told["events"] - len(received) <= numbers["dropped"] + numbers["spooled"]
    assert told["late"] - told["early"] < 20 << 20, told
    assert 0 == told["threads"]

