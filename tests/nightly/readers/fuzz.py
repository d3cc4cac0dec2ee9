"""Fuzz the readers of segments, boxes, pages and stored runs for a minute, guided by coverage: ``make fuzz-readers``.

Each target runs in a separate process, all of them at the same time. They begin with files of real processes. An input
that fails is kept in ``build/fuzz``; copied to ``tests/nightly/readers/found``, it is a test of ``make test``.

    fuzz.py                       all targets for 60 seconds, with a new seed
    fuzz.py --seconds 600 --seed 7 box
    fuzz.py --input FILE box      one input
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = ROOT / "build" / "fuzz"
READERS = "tests.nightly.readers"
LARGEST = 1 << 15  # bytes of an input
SLOWEST = 10.0  # seconds of CPU time for an input
MEMORY_MB = 1024
EXIT_SECONDS = 240  # for the start, the last inputs and the end of a process, on a busy machine
ABORT_SECONDS = 20
NEVER = 10**6  # seconds; 0 is one second
SLOW_STATUS = 70
DONE = re.compile(r"^Done (\d+) runs in ", re.MULTILINE)  # printed when the time is over and no input has failed


class Ended(NamedTuple):
    """The end of the process of a target.

    Attributes:
        failed: Whether an input has failed, or may have.
        report: What to print.
    """

    failed: bool
    report: str


class Watch:
    """Runs a target, and ends the process if an input takes too long.

    The fuzzer's ``-timeout`` would do it in a signal handler that allocates memory, and hangs if the signal is inside
    malloc(). Its time goes on while the process ends.

    Args:
        name: Name of the target.
        target: The target.
        seconds: CPU time for an input, so that a busy machine slows none down.
        whole: Seconds after which the process ends. The fuzzer's own end unloads Python while threads of an input may
            still run, and sometimes hangs.
    """

    def __init__(
        self, name: str, target: Callable[[bytes], None], seconds: float = SLOWEST, whole: float = NEVER
    ) -> None:
        self._name = name
        self._target = target
        self._seconds = seconds
        self._runs, self._began, self._whole = 0, time.monotonic(), whole
        self._current: tuple[bytes, float] | None = None  # the input, and the CPU time at its begin
        threading.Thread(target=self._observe, daemon=True).start()

    def __call__(self, content: bytes) -> None:
        """Run the target with an input."""
        self._current = content, time.process_time()
        self._target(content)
        self._current = None
        self._runs += 1
        elapsed = time.monotonic() - self._began
        if elapsed > self._whole:
            os.write(2, f"Done {self._runs} runs in {elapsed:.0f} second(s)\n".encode())
            os._exit(0)

    def _observe(self) -> None:
        wait = threading.Event().wait
        while True:
            wait(min(1.0, self._seconds))
            current = self._current
            if current is not None and time.process_time() - current[1] > self._seconds:
                path = FOUND / f"{self._name}-slow-{sha256(current[0]).hexdigest()[:16]}"
                path.write_bytes(current[0])
                faulthandler.dump_traceback()
                os.write(2, f"an input takes longer than {self._seconds} s of CPU time: {path}\n".encode())
                os._exit(SLOW_STATUS)


def fuzz(target: str, corpus: Path, seconds: int, seed: int) -> None:
    """Fuzz one target in this process, which ends here."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["monitel", "monitel_otlp"]):
        targets = import_module(f"{READERS}.targets")
    mutations = import_module(f"{READERS}.mutations")
    mutate = mutations.mutate_archive if target in targets.ARCHIVES else mutations.mutate_file

    def custom_mutator(content: bytes, largest: int, seed: int) -> bytes:
        other: bytes = mutate(content, random.Random(seed), lambda part: atheris.Mutate(part[:LARGEST], LARGEST))
        return other[:largest]

    FOUND.mkdir(parents=True, exist_ok=True)
    arguments = [f"-max_len={LARGEST}", f"-timeout={NEVER}", f"-rss_limit_mb={MEMORY_MB}"]
    files = f"-artifact_prefix={FOUND}/{target}-"
    os.chdir(corpus)  # relative names in an input lead here
    watched = Watch(target, targets.TARGETS[target], whole=seconds)
    arguments += [files, f"-seed={seed}", str(corpus)]
    atheris.Setup([sys.argv[0], *arguments], watched, custom_mutator=custom_mutator)
    with targets.undisturbed():
        atheris.Fuzz()


def fuzz_all(chosen: list[str], seconds: int, seed: int) -> int:
    """Fuzz targets at the same time, and return the exit status: 0 if no input has failed."""
    seeds = import_module(f"{READERS}.seeds")
    print(f"seed {seed}", flush=True)  # noqa: T201  a command
    failed = False
    with TemporaryDirectory() as folder:
        corpora = seeds.make_corpora(Path(folder))
        options = ["--seed", str(seed), "--seconds", str(seconds)]
        processes = {
            target: subprocess.Popen(
                [sys.executable, __file__, *options, "--corpus", str(corpora / target), target],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )
            for target in chosen
        }  # fmt: skip
        deadline = time.monotonic() + seconds + EXIT_SECONDS
        for target, process in processes.items():
            ended = end_of(process, deadline)
            failed |= ended.failed
            print(f"{target}: {ended.report}", flush=True)  # noqa: T201  a command
    return int(failed)


def end_of(process: subprocess.Popen[str], deadline: float) -> Ended:
    """Return how a process has ended. After the deadline (monotonic seconds) it is made to end.

    At SIGABRT libFuzzer keeps the current input.
    """
    forced = False
    try:
        output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        forced = True
        process.send_signal(signal.SIGABRT)
        try:
            output, _ = process.communicate(timeout=ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    done = DONE.search(output)
    how = f"status {process.returncode}{', because it did not end' if forced else ''}"
    if done is None or not (forced or process.returncode == 0):
        return Ended(True, f"{how}\n{output[-3000:]}\nan input that fails is in {FOUND}")
    return Ended(False, f"{done[1]} inputs, {how}")


def main() -> int:
    """Run the command."""
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description="fuzz the readers")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--input", type=Path, help="run the target for this file only")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)  # for the process of a target
    parser.add_argument("targets", nargs="*")
    given = parser.parse_args()
    if given.corpus is not None:
        fuzz(given.targets[0], given.corpus, given.seconds, given.seed)
    targets = import_module(f"{READERS}.targets").TARGETS
    if given.input is not None:
        targets[given.targets[0]](given.input.read_bytes())
        return 0
    return fuzz_all(given.targets or [*targets], given.seconds, given.seed)


if __name__ == "__main__":
    sys.exit(main())
