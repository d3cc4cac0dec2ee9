"""A job that a test kills: it configures a pipeline, records at random, forks if asked to, and may end by itself."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from tests.nightly.kills.history import HistoryWriter
from tests.nightly.kills.load import Load, source_names

import monitel_otlp

if TYPE_CHECKING:
    from collections.abc import Callable

_STORM = 0.01  # seconds between two forks
_ORPHAN = 8.0  # seconds that a child lives that does nothing
_MEGABYTE = 1 << 20


def run_job(job: dict[str, Any]) -> None:
    """Run a job until it is killed, or until its life is over.

    Args:
        job: ``folder`` of the history, ``number``, ``seed``, ``threads``, ``tiles``, ``busy``, ``life`` (seconds; None:
            forever), ``burst`` (events at its end), ``ending`` (``shutdown``, ``exit``, or a key of ``_CRASHES``),
            ``forks`` (``never``, ``sometimes``, ``always``, or ``once``, a child that outlives the job), and the
            arguments of ``configure()`` in ``options``. Its ``environment`` is set, it enters its ``cgroup``, and
            iterates over a DataLoader if ``loader`` is true.
    """
    os.environ.update(job["environment"])
    if job.get("cgroup"):
        Path(job["cgroup"], "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    history = HistoryWriter(_history_of(job), source_names(job["threads"], job["tiles"]))
    pipeline = monitel_otlp.configure(**job["options"], resource_attributes={"job": job["number"]})
    history.set(configured_ns=time.monotonic_ns())
    fork = partial(_fork, job, pipeline)
    load = Load(
        history,
        job["seed"],
        job["threads"],
        tiles=job["tiles"],
        fork=fork if job["forks"] == "sometimes" else None,
        busy=job["busy"],
        spans=job["options"]["spans"],
    )
    load.start()
    if job["forks"] == "once" and not os.fork():
        Event().wait(_ORPHAN)
        os._exit(0)
    if job.get("loader"):
        _iterate(job["life"])
    elif job["forks"] == "always":
        _fork_until(time.monotonic() + (job["life"] or 3600), fork)
    else:
        Event().wait(job["life"])
    if (crash := _CRASHES.get(job["ending"])) is not None:
        crash()
    load.stop()
    load.emit(job["burst"])
    history.set(stopped_ns=time.monotonic_ns())
    if job["ending"] == "shutdown":
        pipeline.shutdown()
        history.set(ended_ns=time.monotonic_ns())


def _history_of(job: dict[str, Any]) -> Path:
    """Return the path of the file of this process."""
    return Path(job["folder"]) / f"{job['number']}-{os.getpid()}.history"


def _fork_until(end: float, fork: Callable[[int], None]) -> None:
    pause = Event()
    seed = 0
    while time.monotonic() < end:
        fork(seed)
        seed += 1
        pause.wait(_STORM)


def _fork(job: dict[str, Any], pipeline: monitel_otlp.Pipeline, seed: int) -> None:
    """Fork a child that records and dies at once, in one of three ways, and wait for earlier children that are dead."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if os.fork():
        return
    try:
        history = HistoryWriter(_history_of(job), source_names(1))
        history.set(configured_ns=time.monotonic_ns())
        Load(history, seed, 1, spans=job["options"]["spans"]).record(seed % 50)
        if seed % 3 == 0:
            pipeline.shutdown()
            history.set(ended_ns=time.monotonic_ns())
        history.set(stopped_ns=time.monotonic_ns())
        if seed % 3 == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(0)


def _iterate(life: float | None) -> None:
    """Iterate over a DataLoader with two workers."""
    from torch.utils.data import DataLoader  # it takes seconds

    end = time.monotonic() + (life or 3600)
    loader = DataLoader([*range(64)], batch_size=4, num_workers=2, persistent_workers=True)
    while time.monotonic() < end:
        for _ in loader:
            pass


def _start_in_c(function: str) -> None:
    """Call a function of the C library with a null pointer in a thread that Python does not know, and wait for it."""
    library = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    library.pthread_create(ctypes.byref(thread), None, ctypes.cast(getattr(library, function), ctypes.c_void_p), None)
    Event().wait(10)


def _fill_memory() -> None:
    kept = []
    while True:
        kept.append(b"x" * _MEGABYTE)


_CRASHES: dict[str, Callable[[], object]] = {
    "abort in C": lambda: _start_in_c("abort"),
    "null pointer in C": lambda: _start_in_c("strlen"),
    "null pointer": lambda: ctypes.string_at(0),
    "out of memory": _fill_memory,
}


if __name__ == "__main__":
    run_job(json.loads(sys.argv[1]))
