"""The end of a process whose backend never answers, or is away: how long it takes, and that everything is on disk."""

import re
import socket
import subprocess
import sys
import tempfile
import time
from statistics import median

from row import Row

_BUDGET_NS = 2e9
_RUNS = 3
_START = """
import sys, time
import monitel, monitel_otlp
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir=sys.argv[2], export_interval=3600.0)
"""
_END = """
print("the job is done", flush=True)
"""
_SLOW = """
monitel.register_event_handler(lambda event: time.sleep(0.01))
for n in range(2000):
    monitel.stat(f"loss.{n}").add(0.25)
"""
_EVENTS = """
for n in range(100_000):
    monitel.emit("epoch", epoch=n)
"""
# The Stats are known when the process ends, as those of a training are.
_STATS = """
stats = [monitel.Stat(f"loss.{n}", ["mean", "max"], 3600.0) for n in range(100_000)]
for _ in range(2):
    for stat in stats:
        stat.add(0.25)
    if _ == 0:
        monitel.flush()
"""
_NEW_STATS = """
stats = [monitel.Stat(f"loss.{n}", ["mean"], 3600.0) for n in range(100_000)]
for stat in stats:
    stat.add(0.25)
"""
#: What happens, the job, whether the backend accepts connections, and how many items have to be on disk.
_CASES = (
    ("exit with 2,000 open Stats and a slow handler", _SLOW, True, 2000),
    ("exit with 100,000 queued events, backend that never answers", _EVENTS, True, 100_000),
    ("exit with 100,000 open Stats, no backend", _STATS, False, 200_000),
    ("exit with 100,000 open Stats that are new, no backend", _NEW_STATS, False, 100_000),
)


def time_to_exit(job: str, endpoint: str, items: int) -> int:
    """Return the time from the job's last line to the end of its process, in ns."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", f"{_START}{job}{_END}", endpoint, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        if process.stdout is None or "done" not in process.stdout.readline():
            raise SystemExit("the job did not come to its end")
        begin = time.perf_counter_ns()
        summary = process.communicate(timeout=60)[1]
        took = time.perf_counter_ns() - begin
    stored = re.search(r"(\d+) items in ", summary)
    if stored is None or int(stored[1]) < items or "dropped" in summary:
        raise SystemExit(f"expected {items} items on disk: {summary}")
    return took


def main() -> None:
    for what, job, listens, items in _CASES:
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
            if not listens:
                server.close()
            Row(what, median(time_to_exit(job, endpoint, items) for _ in range(_RUNS)), most=_BUDGET_NS).put()


if __name__ == "__main__":
    main()
