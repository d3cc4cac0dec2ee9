"""Readers of files of other processes, run on damaged files for a minute: a box, a spool, and the ledger of a run.

    fuzz.py                       for 60 seconds, with a new seed
    fuzz.py --seconds 600 --seed 7 box
    fuzz.py --input FILE box      one input

An input is an archive of the files of a folder; see :func:`pack`. One that fails is kept in ``build/fuzz``; copied to
``tests/nightly/readers/found``, it is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.support.commands import command  # noqa: E402
from tests.support.receiver import Receiver  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = ROOT / "build" / "fuzz"
SLOWEST = 30  # seconds for an input, on a busy machine
EVENTS = 3
TARGETS = ("box", "spool", "ledger")
_NUMBERS = (0, -1, 7, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, float("nan"), float("inf"))

#: Records and waits for a line, or is killed.
JOB = """
import os, sys, time
import monitel, monitel_otlp
from monitel.profiler import record_function
monitel_otlp.configure(endpoint="http://127.0.0.1:9", spool_dir="spool", service_name="llm", export_interval=3600.0)
loss = monitel.Stat("train.loss", [monitel.COUNT, monitel.HISTOGRAM], 3600.0, attributes={"split": "train"})
monitel.set_step(7)
for number in range(3):
    loss.add(0.5 * number)
    monitel.emit("event", number=number, text="\\u20ac", share=0.5, last=True)
monitel.counter("train.samples").add(8)
with monitel.WaitCounter("all_reduce").guard(), record_function("forward"):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def pack(files: dict[str, bytes]) -> bytes:
    """Return files as one input."""
    return b"".join(f"{name}\n{len(content)}\n".encode() + content for name, content in files.items())


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the files of an input."""
    files = {}
    while content:
        name, length, rest = content.split(b"\n", 2)
        files[name.decode()], content = rest[: int(length)], rest[int(length) :]
    return files


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_inputs(folder: Path) -> dict[str, bytes]:
    """Return an input for each target, from real processes: one that is killed, and one that ends."""
    for name in ("killed", "ended"):
        (folder / name).mkdir(mode=0o700)
        environment = {**os.environ, "MONITEL_BLACK_BOX_DIR": str(folder / name / "boxes")}
        with subprocess.Popen(
            [sys.executable, "-c", JOB],
            cwd=folder / name,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert b"ready\n" == process.stdout.readline()
            if name == "killed":
                deadline = time.monotonic() + 60
                while not json.loads(command("autopsy", folder / name / "boxes", "--json").output)["processes"][0][
                    "windows"
                ]:
                    assert time.monotonic() < deadline, "no record of the window"
                process.kill()
            process.stdin.close()
    spool = files_of(folder / "ended" / "spool")
    return {
        "box": pack(
            {name: each for name, each in files_of(folder / "killed" / "boxes").items() if "stacks" not in name}
        ),
        "spool": pack({name: each for name, each in spool.items() if "ledgers" not in name}),
        "ledger": pack({name: each for name, each in spool.items() if "ledgers" in name}),
    }


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return an input in which one to three files differ, are missing, or have the content of another one."""
    files = unpack(content)
    for _ in range(rng.randrange(1, 4)):
        if not files:
            break
        name = rng.choice([*files])
        kind = rng.random()
        if kind < 0.05:
            del files[name]
        elif kind < 0.1:
            files[name] = files[rng.choice([*files])]
        elif files[name].startswith(b"{") and kind < 0.7:
            with suppress(ValueError):
                files[name] = json.dumps(_other(json.loads(files[name]), rng)).encode()
        else:
            files[name] = _other_bytes(files[name], rng)
    return pack(files)


def _other(value: Any, rng: random.Random) -> Any:
    """Return a plain value that differs in one place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        return {**value, key: _other(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _other(value[at], rng), *value[at + 1 :]]
    return rng.choice([*_NUMBERS, None, True, "", "x", "\x1b[2J\n", [], {}, {"x": 1}, ["x", 1]])


def _other_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, flip, insert or repeat bytes."""
    begin = rng.randrange(len(content) + 1)
    end = min(len(content), begin + rng.randrange(1, 40))
    flipped = bytes(each ^ 1 << rng.randrange(8) for each in content[begin : begin + 1])
    forms = (content[:begin], content[:begin] + content[end:], content[:end] + content[begin:])
    noisy = (content[:begin] + rng.randbytes(rng.randrange(9)) + content[at:] for at in (begin, end))
    return rng.choice([*forms, *noisy, *[content[:begin] + flipped + content[begin + 1 :]] * 2])


def read(target: str, content: bytes, folder: Path, url: str) -> None:
    """Run all readers on an input in a new folder; raise AssertionError or another exception if one fails."""
    folder.mkdir(mode=0o700)
    for name, each in unpack(content).items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(each)
        path.chmod(0o600)
    commands: dict[str, list[tuple[object, ...]]] = {
        "box": [("autopsy", folder, "--json"), ("autopsy", folder, "--all"), ("top", folder, "--once")],
        "spool": [("cat", folder), ("autopsy", folder, "--json")],
        "ledger": [("ledger", "--spool-dir", folder), ("compare", folder, folder, "--all")],
    }
    for arguments in (*commands[target], ("replay", folder, "--endpoint", url)):
        status, output, errors = command(*arguments, *["--interval", "0.1"] * (arguments[0] == "top"))
        assert status in {0, 1}, (arguments, status)
        assert "Traceback" not in errors, errors
        assert all(each.isprintable() for each in (output + errors).replace("\n", "")), (arguments, output, errors)
        if "--json" in arguments:
            json.loads(output or "{}")
    again = command("replay", folder, "--endpoint", url)
    assert "collected" not in again.output, again  # nothing is collected twice


def fuzz(
    targets: list[str], seconds: float, seed: int, most: int = 1 << 30, report: Callable[..., object] = print
) -> int:
    """Run targets in turns; return the number of inputs. An input that fails or hangs is kept, and raises."""
    rng, number = random.Random(seed), 0
    with TemporaryDirectory() as name, Receiver() as receiver:
        folder = Path(name)
        os.environ["MONITEL_BLACK_BOX_DIR"] = str(folder / "boxes")  # the user's stay as they are
        seeds, end = make_inputs(folder), time.monotonic() + seconds
        while time.monotonic() < end and number < most:
            target = targets[number % len(targets)]
            content = seeds[target] if number < len(targets) else mutate(seeds[target], rng)
            receiver.requests.clear()
            signal.alarm(SLOWEST)  # ends the process
            try:
                read(target, content, folder / f"{number}", receiver.url)
                found = [record.attributes["number"] for record in receiver.records("event")]
                assert len({*found}) == len(found), found
                assert {*found} <= {*range(EVENTS)}, found
            except BaseException:
                FOUND.mkdir(parents=True, exist_ok=True)
                (FOUND / f"{target}-{seed}-{number}.bin").write_bytes(content)
                report(f"an input that fails is in {FOUND}")
                raise
            finally:
                signal.alarm(0)
            number += 1
    return number


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="fuzz the readers")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--input", type=Path, help="one input")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    given = parser.parse_args()
    if given.input is not None:
        with TemporaryDirectory() as folder, Receiver() as receiver:
            read(given.targets[0], given.input.read_bytes(), Path(folder) / "input", receiver.url)
        return 0
    print(f"seed {given.seed}", flush=True)  # noqa: T201  a command
    number = fuzz(given.targets or [*TARGETS], given.seconds, given.seed)
    print(f"{number} inputs")  # noqa: T201  a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
