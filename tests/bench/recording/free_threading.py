"""Stat.add() on a free-threaded CPython, beside the build with a GIL of the same version.

monitel and its C window are installed in both: in the environments ``.venv-3.13t`` and ``.venv-3.13`` of this clone, or
those of the interpreters that ``MONITEL_FREE_THREADED`` and ``MONITEL_WITH_GIL`` name.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns

from race import twin
from row import Row

import monitel

_ROOT = Path(__file__).parents[3]
_SAMPLES = 50_000  # of each thread, a round
_ROUNDS = 100
_PROCESSES = 3  # with each interpreter, in turns


def together(threads: int) -> float:
    """Have threads add, each to a separate Stat; ns from the first sample to the last, per sample of a thread."""
    start = threading.Barrier(threads)
    times: list[int] = []

    def work() -> None:
        # Objects of the thread: threads that share one wait for its reference count.
        add, sample = monitel.Stat("one of several", [monitel.MEAN], 1e9).add, float(repr(0.25))
        start.wait()
        began = perf_counter_ns()
        for _ in repeat(None, _SAMPLES):
            add(sample)
        times.extend((began, perf_counter_ns()))

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return (max(times) - min(times)) / _SAMPLES


def measured(python: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHON_GIL": "0"} if python == FREE else os.environ
    done = subprocess.run([python, __file__, "measure"], env=environment, capture_output=True, timeout=300, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


FREE = os.environ.get("MONITEL_FREE_THREADED", str(_ROOT / ".venv-3.13t/bin/python"))
LOCKED = os.environ.get("MONITEL_WITH_GIL", str(_ROOT / ".venv-3.13/bin/python"))


def main() -> None:
    """Measure with both interpreters in turns, and compare the least costs."""
    if shutil.which(FREE) is None or shutil.which(LOCKED) is None:
        Row("Stat.add without the GIL: no two interpreters (see the subject)", None).put()
        return
    runs = [(measured(FREE), measured(LOCKED)) for _ in range(_PROCESSES)]
    own, peer = ({name: min(each[name] for each in found) for name in found[0]} for found in zip(*runs, strict=True))
    row = Row("Stat.add without the GIL", own["1"], peer="with it", peer_value=peer["1"], most_ratio=1.6)
    row.ratio = own["1"] / peer["1"]
    row.put()
    row = Row("2 threads on 2 Stats without the GIL", own["2"], peer="1 thread", peer_value=own["1"])
    row.ratio, row.most_ratio = own["2"] / own["1"], 2 / 1.8  # two threads add at least 1.8 times as many samples
    row.put()


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        assert twin() == "C"
        print(json.dumps({str(each): min(together(each) for _ in range(_ROUNDS)) for each in (1, 2)}))
    else:
        main()
