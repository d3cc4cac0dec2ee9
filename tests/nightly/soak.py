"""Minutes of random faults: accounts add up and match the arrivals, memory does not grow, and no thread remains.

Then a thousand jobs are killed at random, and lose at most a moment.

Not part of the test suite; run it with ``pytest tests/nightly/soak.py``. ``MONITEL_SOAK_SECONDS`` sets the
duration of the faults in seconds, ``MONITEL_SOAK_KILLS`` the number of kills.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.producers import ANY, answer_at_random
from tests.support.receiver import Receiver
from tests.support.scripts import Run
from tests.support.spools import spooled

SECONDS = float(os.environ.get("MONITEL_SOAK_SECONDS", "110"))
KILLS = int(os.environ.get("MONITEL_SOAK_KILLS", "1000"))
SEED = 20261120

TRAIN = """
import gc, json, random, resource, sys, threading, time
import monitel, monitel_otlp

url, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
threads = threading.active_count()
pipeline = monitel_otlp.configure(endpoint=url, export_interval=0.2, spool_dir="spool", spans=True)
pause = threading.Event()
logged = {"windows": 0, "events": 0, "breaks": 0}

def count(event):
    logged["windows" if event.window else "events"] += 1

def check():
    for signal, each in pipeline.account().items():
        found = each.delivered + each.on_disk + each.folded + each.lost + each.waiting
        if each.recorded != found or min(each.waiting, each.on_disk, each.delivered) < 0:
            logged["breaks"] += 1
            print("the account does not add up:", signal, each, file=sys.stderr)

monitel.register_event_handler(count)
stats = [monitel.Stat(f"stat.{n}", monitel.stats.definition.TORCHS, 0.05) for n in range(20)]
counter = monitel.counter("mine")

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

begin, early, step = time.monotonic(), 0, 0
while (elapsed := time.monotonic() - begin) < seconds:
    monitel.set_step(step := step + 1)
    with monitel.profiler.record_function("step"):
        for stat in stats:
            stat.add(rng.random())
    counter.add(1)
    if rng.random() < 0.2:
        monitel.emit("event", number=logged["events"])
    if step % 50 == 0:
        check()
    if not early and elapsed > seconds / 3:
        early = resident()
    pause.wait(0.005)
late = resident()
for _ in range(20_000):  # a burst before the exit
    monitel.emit("event", number=logged["events"])
began = time.monotonic()
pipeline.shutdown()
took = time.monotonic() - began
check()
account = {signal: {"recorded": each.recorded, "delivered": each.delivered, "on_disk": each.on_disk,
                    "waiting": each.waiting, "dropped": dict(each.dropped)}
           for signal, each in pipeline.account().items()}
left = [each.name for each in threading.enumerate() if each.name.startswith("monitel")]
print(json.dumps({**logged, "early": early, "late": late, "took": took, "account": account, "left": left}))
"""


def test_everything_is_accounted_for(receiver: Receiver, run: Run, tmp_path: Path) -> None:
    """Each item is delivered, on disk, or dropped with a reason; delivered items are those that the backend decoded."""
    answer_at_random(receiver, SEED, [*30 * ["200"], *ANY])
    env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    ended = run("-W", "ignore", "-c", TRAIN, receiver.url, SECONDS, SEED, env=env, timeout=SECONDS + 60)
    report: dict[str, Any] = json.loads(ended.stdout)
    assert 0 == report["breaks"]
    account = report["account"]
    assert report["windows"] == account["metrics"]["recorded"]
    assert report["events"] == account["logs"]["recorded"]
    assert report["windows"] > 20 * SECONDS
    for signal_, each in account.items():
        assert 0 == each["waiting"]
        assert each["recorded"] == each["delivered"] + each["on_disk"] + sum(each["dropped"].values()), signal_
        assert not {"unaccounted", "encoding", "exit"} & each["dropped"].keys(), (signal_, each)
    received = {record.attributes["number"] for record in receiver.records("event")}
    missing = set(range(report["events"])) - received
    logs = account["logs"]
    assert logs["delivered"] <= len(received)
    assert len(missing) <= logs["on_disk"] + sum(logs["dropped"].values())
    assert logs["on_disk"] == len(spooled(tmp_path / "spool")[1])
    assert report["took"] < 3.0
    assert report["late"] - report["early"] < 20 << 20, report
    assert [] == report["left"]


@pytest.mark.skipif(sys.platform != "linux", reason="a black box needs Linux")
def test_killed_jobs_lose_at_most_a_moment() -> None:
    """Samples older than 1.5 s at SIGKILL, and each event, arrive once: see ``kills/campaign.py``."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.kills.campaign"]
    command += ["--kills", str(KILLS), "--seed", str(SEED)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 + 5 * KILLS, check=False)
    sys.stdout.write(ended.stdout)  # -rP prints it
    assert 0 == ended.returncode, ended.stderr
