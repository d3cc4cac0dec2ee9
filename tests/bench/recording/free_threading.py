"""Stat.add() on a free-threaded CPython, beside the build with a GIL of the same version.

Both interpreters are found in ``PATH`` (``python3.13t`` and ``python3.13``, or a later version) and in the environments
``.venv-3.13t`` and ``.venv-3.13`` of this clone, or given in ``MONITEL_FREE_THREADED`` and ``MONITEL_WITH_GIL``. The C
window is compiled for each of them in a temporary folder.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from row import Row

import monitel

_ROOT = Path(__file__).parents[3]
_VERSIONS = ("3.13", "3.14", "3.15")
_SAMPLES = 50_000  # of each thread, a round
_ROUNDS = 100
_PROCESSES = 3  # with each interpreter, in turns
_BUILD = """
import sysconfig as s
print(s.get_config_var("CC"), "-shared -fPIC -O3 -ffp-contract=off", "-I" + s.get_path("include"))
print(s.get_config_var("EXT_SUFFIX"))
"""


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


def alone() -> float:
    """Add in the main thread; ns per sample."""
    add, sample = monitel.Stat("alone", [monitel.MEAN], 1e9).add, 0.25
    began = perf_counter_ns()
    for _ in repeat(None, _SAMPLES):
        add(sample)
    ended = perf_counter_ns()
    return (ended - began) / _SAMPLES


def wrong_numbers() -> int:
    """Have four threads add small integers to one Stat; how many numbers of the window are wrong."""
    stat = monitel.Stat("shared", [monitel.HISTOGRAM], 1e9)

    def work(number: int) -> None:
        for sample in range(_SAMPLES // 4):
            stat.add(float(number + sample % 4))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with monitel.testing.capture_events() as events:
        stat.flush()
    window = events[0].window
    assert window is not None
    assert window.histogram is not None
    expected = sum(number + sample % 4 for number in range(4) for sample in range(_SAMPLES // 4))
    buckets = window.histogram.zero_count, sum(window.histogram.positive)
    found = (window.count, window.sum, window.min, window.max, *buckets)
    return sum(
        a != b for a, b in zip(found, (_SAMPLES, expected, 0, 6, _SAMPLES // 16, _SAMPLES * 15 // 16), strict=True)
    )


def measure() -> dict[str, float]:
    """The least costs in this interpreter."""
    costs: dict[str, list[float]] = {"alone": [], "one": [], "two": []}
    for _ in range(_ROUNDS):
        costs["alone"].append(alone())
        costs["one"].append(together(1))
        costs["two"].append(together(2))
    return {**{name: min(each) for name, each in costs.items()}, "wrong": wrong_numbers()}


def answer(python: str, code: str) -> list[str] | None:
    """Return the lines that an interpreter prints; None if it does not run."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()


def interpreters() -> tuple[str, str, str] | None:
    """A version, its free-threaded interpreter and the one with a GIL; None where there are no two of one version."""
    for version in _VERSIONS:
        found: list[str] = []
        for suffix, variable in (("t", "MONITEL_FREE_THREADED"), ("", "MONITEL_WITH_GIL")):
            names = (
                os.environ.get(variable),
                f"{_ROOT}/.venv-{version}{suffix}/bin/python",
                f"python{version}{suffix}",
            )
            code = (
                "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2], s.get_config_var('Py_GIL_DISABLED'))"
            )
            wanted = [[f"{version} 1"]] if suffix else [[f"{version} 0"], [f"{version} None"]]
            fits = [path for name in names if name and (path := shutil.which(name)) and answer(path, code) in wanted]
            found.extend(fits[:1])
        if len(found) == 2:
            return version, found[0], found[1]
    return None


def measured(python: str, folder: Path) -> dict[str, float]:
    """Return the result of :func:`measure` in another interpreter, with the C window in the folder."""
    done = subprocess.run(
        [python, __file__, "measure"],
        env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}", "MONITEL_NO_EXTENSIONS": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def with_window(python: str, folder: Path) -> Path:
    """Copy the package to a folder, with the C window for an interpreter."""
    command, suffix = answer(python, _BUILD) or ["", ""]
    shutil.copytree(_ROOT / "src", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    window = folder / "monitel" / "_window_c"
    subprocess.run([*shlex.split(command), f"{window}.c", "-o", f"{window}{suffix}", "-lm"], timeout=120, check=True)
    return folder


def main() -> None:
    """Measure with both interpreters in turns, and compare the least costs."""
    found = interpreters()
    if found is None:
        print("no free-threaded CPython and CPython of the same version found:", __doc__, file=sys.stderr)
        Row("Stat.add without the GIL: no two interpreters (see the subject)", None).put()
        return
    version, free, locked = found
    runs: dict[str, list[dict[str, float]]] = {free: [], locked: []}
    with tempfile.TemporaryDirectory() as folder:
        built = {python: with_window(python, Path(folder, str(number))) for number, python in enumerate(runs)}
        for _ in range(_PROCESSES):
            for python, each in runs.items():
                each.append(measured(python, built[python]))
    least: Any = {python: {name: min(run[name] for run in each) for name in each[0]} for python, each in runs.items()}
    own, peer = least[free], least[locked]
    what = f"without the GIL, CPython {version}"
    ratio = own["alone"] / peer["alone"]
    Row(f"Stat.add {what}", own["alone"], peer="with it", peer_value=peer["alone"], ratio=ratio, most_ratio=1.6).put()
    ratio = own["two"] / own["one"]
    row = Row(f"2 threads on 2 Stats {what}", own["two"], peer="1 thread", peer_value=own["one"], ratio=ratio)
    row.most_ratio = 2 / 1.8  # two threads add at least 1.8 times as many samples
    row.put()
    Row(f"4 threads on one Stat {what}: wrong numbers", max(run["wrong"] for run in runs[free]), unit="", most=0).put()


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
    else:
        main()
