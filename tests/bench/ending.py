"""The end of a process whose backend takes connections and never answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from statistics import median

from race import optional
from row import Row

_BUDGET_NS = 2e9
_RUNS = 3
_JOB = """
import sys
import monitel, monitel_otlp
monitel_otlp.configure(endpoint=sys.argv[1], spool_dir=sys.argv[2])
for n in range(1000):
    monitel.stat(f"loss.{n}").add(0.25)
    monitel.emit("epoch", epoch=n)
print("the job is done", flush=True)
"""


def time_to_exit(endpoint: str, folder: str) -> int:
    """From the job's last line to the end of its process, in ns."""
    with subprocess.Popen(
        [sys.executable, "-c", _JOB, endpoint, folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as job:
        if job.stdout is None or "done" not in job.stdout.readline():
            raise SystemExit("the job did not come to its end")
        begin = time.perf_counter_ns()
        job.wait(timeout=60)
        return time.perf_counter_ns() - begin


def main() -> None:
    """Measure with 1,000 windows and 1,000 events that wait."""
    what = "exit, backend that never answers"
    if optional("monitel_otlp") is None:
        Row(what, None).put()
        return
    with socket.create_server(("127.0.0.1", 0)) as silent, tempfile.TemporaryDirectory() as folder:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        Row(what, median(time_to_exit(endpoint, folder) for _ in range(_RUNS)), most=_BUDGET_NS).put()


if __name__ == "__main__":
    main()
