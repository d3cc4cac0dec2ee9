"""The state of a process in the kernel, and what it means for a process without a heartbeat."""

import os
from collections import Counter
from pathlib import Path

import pytest

from monitel.console.kernel import KernelState, explain_silence, kernel_state

START = "4711"


def made_up(folder: Path, *, stat: bytes, wchan: str = "0", tasks: tuple[str, ...] = ()) -> None:
    (folder / "7").mkdir(parents=True)
    (folder / "7/stat").write_bytes(stat)
    (folder / "7/wchan").write_text(wchan)
    (folder / "7/status").write_text("Name:\tx\nTracerPid:\t99\n")
    for number, letter in enumerate(tasks):
        task = folder / f"7/task/{number}"
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a) b) {letter} {'1 ' * 18}{START}")
        (task / "wchan").write_text("nfs_wait_bit" if letter == "D" else "futex_wait_queue")


def stat(letter: str) -> bytes:
    """Return a stat file with a hostile name, 100 ticks in user mode and 50 in the kernel."""
    fields = [letter, *["1"] * 10, "100", "50", *["1"] * 6, START, "1"]
    return b"7 (\xff) S 1 (" + b") " + " ".join(fields).encode()


def test_threads_that_cannot_be_interrupted_are_named(tmp_path: Path) -> None:
    """With the place in the kernel."""
    made_up(tmp_path, stat=stat("D"), wchan="nfs_wait_bit", tasks=("S", "D", "D"))
    state = kernel_state("7", START, tmp_path)
    assert state is not None
    assert ("D", "nfs_wait_bit", ("nfs_wait_bit",), 99) == (state.letter, state.waiting_in, state.stuck, state.tracer)
    assert 150 * 10**9 // os.sysconf("SC_CLK_TCK") == state.cpu_ns
    shown = explain_silence(7, state, None, 0)[0]
    assert "2 of 3 threads in state D" in shown
    assert "nfs_wait_bit" in shown


@pytest.mark.parametrize("content", [b"", stat("S").replace(b"100", b"x")])
def test_damaged_files_give_no_state(tmp_path: Path, content: bytes) -> None:
    """A process may end while its files are read."""
    made_up(tmp_path, stat=content)
    assert kernel_state("7", START, tmp_path) is None


def state_of(letter: str = "S", *, cpu_seconds: float = 0.0, waiting_in: str = "") -> KernelState:
    return KernelState(letter, waiting_in, Counter({letter: 1}), round(cpu_seconds * 1e9), 99)


def test_explanations_distinguish_computing_and_waiting() -> None:
    """By the CPU time between two looks."""
    waits = explain_silence(7, state_of(waiting_in="futex_wait_queue"), state_of(), 10**9)
    assert "C code waits without releasing the GIL (main thread: state S in futex_wait_queue)" in waits[0]
    assert "py-spy dump --pid 7" in waits[1]
    assert "gdb -p 7" in waits[1]
    computes = explain_silence(7, state_of(cpu_seconds=11.9), state_of(cpu_seconds=10), 2 * 10**9)
    assert "C code computes without releasing the GIL (0.9 cores)" in computes[0] or "(1.0 cores)" in computes[0]
    crowded = explain_silence(7, state_of("R", cpu_seconds=0.06), state_of("R"), 10**9)
    assert "C code computes without releasing the GIL (0.1 cores)" in crowded[0]
    assert "debugger" in explain_silence(7, state_of("t"), None, 0)[0]
    assert "99" in explain_silence(7, state_of("t"), None, 0)[0]
