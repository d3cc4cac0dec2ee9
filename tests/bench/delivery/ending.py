"""The end of a process: with a backend that never answers, and what is written to disk raw."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from race import optional
from row import Row

_BUDGET_NS = 2e9
_RUNS = 3
_EVENTS = 100_000
_RAW_BUDGET_NS = 0.3e9
_JOB = """
import sys
import monitel, monitel_otlp
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir=sys.argv[2])
for n in range(1000):
    monitel.stat(f"loss.{n}").add(0.25)
    monitel.emit("epoch", epoch=n)
print("the job is done", flush=True)
"""


_BURST = """
import sys
import monitel, monitel_otlp
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir=sys.argv[2], export_interval=3600.0)
for n in range(100_000):
    monitel.emit("epoch", epoch=n)
print("the job is done", flush=True)
"""


def time_to_exit(job: str, endpoint: str, folder: str) -> int:
    """From the job's last line to the end of its process, in ns."""
    with subprocess.Popen(
        [sys.executable, "-c", job, endpoint, folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        if process.stdout is None or "done" not in process.stdout.readline():
            raise SystemExit("the job did not come to its end")
        begin = time.perf_counter_ns()
        process.wait(timeout=60)
        return time.perf_counter_ns() - begin


def time_to_write_raw(folder: str) -> int:
    """From 100,000 events as plain values to a segment on disk, in ns."""
    from monitel_otlp.spool.raw_segment import encode_blocks  # late: monitel_otlp may be missing
    from monitel_otlp.spool.spool import Spool

    events = [("epoch", 1_700_000_000 + n, {"epoch": n, "loss": 0.25, "phase": "train"}) for n in range(_EVENTS)]
    spool = Spool(Path(folder) / "raw")
    begin = time.perf_counter_ns()
    blocks = (block for at in range(0, _EVENTS, 256) for block in encode_blocks(events[at : at + 256]))
    written = spool.append_raw("logs", ("events",), blocks)
    took = time.perf_counter_ns() - begin
    spool.close()
    if written < _EVENTS:
        raise SystemExit("the disk did not take every event")
    return took


def main() -> None:
    """Measure with 1,000 windows and 1,000 events that wait, and with 100,000 events that go to disk."""
    what, raw = "exit, backend that never answers", f"{_EVENTS:,} events written raw"
    burst = f"exit, the same with {_EVENTS:,} queued events"
    if optional("monitel_otlp") is None:
        for each in (what, burst, raw):
            Row(each, None).put()
        return
    with tempfile.TemporaryDirectory() as folder:
        Row(raw, median(time_to_write_raw(folder) for _ in range(_RUNS)), most=_RAW_BUDGET_NS).put()
    with socket.create_server(("127.0.0.1", 0)) as silent, tempfile.TemporaryDirectory() as folder:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for each, job in ((what, _JOB), (burst, _BURST)):
            Row(each, median(time_to_exit(job, endpoint, folder) for _ in range(_RUNS)), most=_BUDGET_NS).put()


if __name__ == "__main__":
    main()
